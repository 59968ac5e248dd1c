"""What a worker measures of its models, from the ends of its requests. Pure."""

import threading
from collections import deque

from tasks.contracts import FinishReason, Rates, Work
from tasks.ended import Ended

KEEP = 0.97  #: what an earlier request still counts when another one has ended: the last 30 or so decide
MAX_LENGTHS = 64


class DecayingRatio:
    """`amount / per`, summed over the requests, newer ones counting more."""

    def __init__(self) -> None:
        self._amount = self._per = 0.0

    def add(self, amount: float, per: float) -> None:
        self._amount = KEEP * self._amount + amount
        self._per = KEEP * self._per + per

    def value(self, default: float = 0.0) -> float:
        return self._amount / self._per if self._per > 0 else default


class RateMeter:
    """From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chats = 0
        self._prefill = DecayingRatio()
        self._decode = DecayingRatio()
        self._chars_per_token = DecayingRatio()
        self._fresh = DecayingRatio()
        self._overhead = DecayingRatio()
        self._lengths: deque[tuple[int, bool]] = deque(maxlen=MAX_LENGTHS)  #: tokens, and whether it was cut
        self._embeddings = 0
        self._embedding_chars = DecayingRatio()
        self._embedding_tokens = DecayingRatio()
        self._embedding_overhead = DecayingRatio()

    def add(self, work: Work, ended: Ended, held_s: float) -> None:
        """A request has ended that held its slot for `held_s`. One that failed tells nothing, one that was cancelled
        that its answer would have been longer."""
        with self._lock:
            if ended.outcome == "cancelled":
                self._add_length(work, ended, is_cut=True)
            elif ended.outcome == "finished" and work.kind == "embedding":
                self._add_embedding(work, ended, held_s)
            elif ended.outcome == "finished":
                self._add_chat(work, ended, held_s)

    def rates(self) -> Rates:
        with self._lock:
            return Rates(
                chats=self._chats,
                prefill_tokens_per_s=round(self._prefill.value(), 2),
                decode_tokens_per_s=round(self._decode.value(), 2),
                chars_per_token=round(self._chars_per_token.value(), 3),
                fresh=round(self._fresh.value(1.0), 4),
                overhead_s=round(self._overhead.value(), 4),
                lengths=[tokens for tokens, is_cut in self._lengths if not is_cut],
                cut_lengths=[tokens for tokens, is_cut in self._lengths if is_cut],
                embeddings=self._embeddings,
                embedding_chars_per_s=round(self._embedding_chars.value(), 1),
                embedding_tokens_per_s=round(self._embedding_tokens.value(), 1),
                embedding_overhead_s=round(self._embedding_overhead.value(), 4),
            )

    def _add_chat(self, work: Work, ended: Ended, held_s: float) -> None:
        timings, usage = ended.timings, ended.usage
        self._chats += 1
        self._prefill.add(timings.prompt_n, timings.prompt_ms / 1000)
        self._decode.add(timings.predicted_n, timings.predicted_ms / 1000)
        self._chars_per_token.add(work.chars, usage.prompt_tokens)
        self._fresh.add(timings.prompt_n, usage.prompt_tokens)
        self._overhead.add(max(0.0, held_s - (timings.prompt_ms + timings.predicted_ms) / 1000), 1)
        self._add_length(work, ended, is_cut=ended.reason is FinishReason.LENGTH)

    def _add_embedding(self, work: Work, ended: Ended, held_s: float) -> None:
        busy_s = ended.timings.prompt_ms / 1000
        self._embeddings += 1
        self._embedding_chars.add(work.chars, busy_s)
        self._embedding_tokens.add(ended.usage.prompt_tokens, busy_s)
        self._embedding_overhead.add(max(0.0, held_s - busy_s), 1)

    def _add_length(self, work: Work, ended: Ended, is_cut: bool) -> None:
        """Of several choices their mean."""
        if work.kind == "chat" and ended.usage.completion_tokens:
            self._lengths.append((round(ended.usage.completion_tokens / work.choices), is_cut))
