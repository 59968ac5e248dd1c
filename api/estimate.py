"""When will it be this request's turn: an estimate from measured rates and the work that is known. Pure."""

import heapq
import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from api.answer_lengths import AnswerLengths
from tasks.claims import Waiting
from tasks.contracts import Lane, Rates, RunningWork, Work

# Until something was measured: a small model on a slow machine
GUESS_PREFILL_TOKENS_PER_S = 50.0
GUESS_DECODE_TOKENS_PER_S = 5.0
GUESS_CHARS_PER_TOKEN = 4.0
GUESS_EMBEDDING_CHARS_PER_S = 500.0
MEASURED_RUNS = 3  #: before so many have ended, a rate counts as a guess
LEAST_LEFT = 0.05  #: of its expected run time, what a request is taken to need however long it has run already

MIN_WAIT_S = 0.1  #: the error of a shorter wait is noise
MIN_ERRORS = 5
MAX_ERRORS = 200


class Queue(NamedTuple):
    """One line of requests, first come first served: those of a share of a lane."""

    lane: Lane
    share: int


class Estimate(NamedTuple):
    wait_s: float
    is_measured: bool  #: False: at least in part a guess
    position: int  #: of the waiting ones, from 1: how many it must see started before it runs, itself included


class Speed:
    """How long requests hold a slot, by what the workers of a group have measured."""

    def __init__(self, rates: Sequence[Rates], max_tokens: int, n_ctx: int) -> None:
        """`max_tokens` and `n_ctx` bound every answer; 0: not known."""
        self._max_tokens = max_tokens or n_ctx or 2048
        self._n_ctx = n_ctx or 2**31
        chat = [rate for rate in rates if rate.chats]
        embedding = [rate for rate in rates if rate.embeddings]
        self.prefill = _mean([rate.prefill_tokens_per_s for rate in chat]) or GUESS_PREFILL_TOKENS_PER_S
        self.decode = _mean([rate.decode_tokens_per_s for rate in chat]) or GUESS_DECODE_TOKENS_PER_S
        self.chars_per_token = _mean([rate.chars_per_token for rate in chat]) or GUESS_CHARS_PER_TOKEN
        self.fresh = _mean([rate.fresh for rate in chat]) if chat else 1.0
        self.overhead_s = _mean([rate.overhead_s for rate in chat])
        self.embedding_chars_per_s = (
            _mean([rate.embedding_chars_per_s for rate in embedding]) or GUESS_EMBEDDING_CHARS_PER_S
        )
        self.embedding_tokens_per_s = _mean([rate.embedding_tokens_per_s for rate in embedding])
        self.embedding_overhead_s = _mean([rate.embedding_overhead_s for rate in embedding])
        self.lengths = AnswerLengths(
            [tokens for rate in rates for tokens in rate.lengths],
            [tokens for rate in rates for tokens in rate.cut_lengths],
        )
        self._runs = {"chat": sum(rate.chats for rate in rates), "embedding": sum(rate.embeddings for rate in rates)}

    def is_measured(self, kind: str) -> bool:
        return self._runs.get(kind, 0) >= MEASURED_RUNS

    def expected_tokens(self) -> float:
        """Of an answer whose request names no limit."""
        return self.lengths.expected(float(self._max_tokens))

    def run_s(self, work: Work) -> float:
        if work.kind == "embedding":
            return self.embedding_overhead_s + work.chars / self.embedding_chars_per_s
        return self._before_s(work) + work.choices * self.lengths.expected(self._limit(work)) / self.decode

    def remaining_s(self, work: Work, elapsed_s: float) -> float:
        """Of one that has run for `elapsed_s`."""
        expected_s = self.run_s(work)
        left_s = expected_s - elapsed_s
        done = (elapsed_s - self._before_s(work)) * self.decode
        if work.kind == "chat" and work.choices == 1 and done > 0:
            left_s = self.lengths.expected(self._limit(work), done) / self.decode
        return max(left_s, LEAST_LEFT * expected_s)

    def _before_s(self, work: Work) -> float:
        """Until the first token."""
        return self.overhead_s + self._prompt_tokens(work) * self.fresh / self.prefill

    def _prompt_tokens(self, work: Work) -> float:
        return work.chars / self.chars_per_token

    def _limit(self, work: Work) -> float:
        """The most tokens of one choice."""
        allowed = min(work.max_tokens or self._max_tokens, self._max_tokens)
        return max(1.0, min(allowed, self._n_ctx - self._prompt_tokens(work)))


class Forecast:
    """What is expected of one group of workers, as of one moment."""

    def __init__(
        self,
        speed: Speed,
        slots: int,
        running: Sequence[tuple[RunningWork, float]],
        queues: Mapping[Queue, list[Waiting]],
    ) -> None:
        """`running` are requests with the seconds they have run; `queues` are in the order of submission."""
        self.speed = speed
        self._queues = queues
        self._last_turn = {Queue(Lane(one.lane), one.work.share): one.began_ms for one, _ in running}
        left_s = sorted(speed.remaining_s(one.work, elapsed_s) for one, elapsed_s in running)
        # more run than there are slots while one ends and the next begins: the ones that end first are as good as over
        busy = left_s[max(0, len(left_s) - slots) :]
        self._free_s = busy + [0.0] * (max(1, slots) - len(busy))
        self._is_measured = slots > 0 and all(speed.is_measured(one.work.kind) for one, _ in running)
        self._estimates = self._run(queues)
        self._of_new: dict[Queue, Estimate] = {}

    def of(self, claim: str) -> Estimate | None:
        """When a waiting request starts. None: it does not wait."""
        return self._estimates.get(claim)

    def of_new(self, queue: Queue) -> Estimate:
        """When a request would start that joined this queue now."""
        if queue not in self._of_new:
            joined = Waiting("", 2**62, Work("chat", 0, share=queue.share))
            self._of_new[queue] = self._run({**self._queues, queue: [*self._queues.get(queue, ()), joined]})[""]
        return self._of_new[queue]

    def _run(self, queues: Mapping[Queue, list[Waiting]]) -> dict[str, Estimate]:
        """Serve all, each on the slot that is free first; each takes as long as expected."""
        free_s = list(self._free_s)
        heapq.heapify(free_s)
        is_measured = self._is_measured or free_s[0] == 0
        estimates = {}
        for position, waiting in enumerate(serving_order(queues, self._last_turn), 1):
            start_s = free_s[0]
            estimates[waiting.claim] = Estimate(start_s, is_measured, position)
            heapq.heapreplace(free_s, start_s + self.speed.run_s(waiting.work))
            is_measured = is_measured and self.speed.is_measured(waiting.work.kind)
        return estimates


def serving_order(queues: Mapping[Queue, list[Waiting]], last_turn: Mapping[Queue, int]) -> Iterable[Waiting]:
    """Interactive before batch; in a lane in turns, the queue that was served longest ago first (tasks/lanes.py)."""
    for lane in Lane:
        mine = sorted((queue for queue in queues if queue.lane is lane), key=lambda queue: last_turn.get(queue, 0))
        lines = deque(deque(queues[queue]) for queue in mine if queues[queue])
        while lines:
            line = lines.popleft()
            yield line.popleft()
            if line:
                lines.append(line)


class EstimateErrors:
    """How far off the last estimates were."""

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=MAX_ERRORS)

    def add(self, estimated_s: float, waited_s: float) -> None:
        if waited_s >= MIN_WAIT_S:
            self._errors.append(abs(estimated_s - waited_s) / waited_s)

    @property
    def count(self) -> int:
        return len(self._errors)

    def median(self) -> float | None:
        """Relative to the wait; None before a few waits were seen."""
        return statistics.median(self._errors) if len(self._errors) >= MIN_ERRORS else None


def _mean(values: Sequence[float]) -> float:
    """Of those that were measured; 0 when none was."""
    measured = [value for value in values if value > 0 and math.isfinite(value)]
    return sum(measured) / len(measured) if measured else 0.0
