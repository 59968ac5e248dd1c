"""One request from its submission to its last frame: what is not llama.cpp's business in it."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tasks.contracts import FinishReason, Sampling, Timings, Usage
from tasks.engines.base import EngineError, FrameSink
from tasks.engines.llamacpp.sampling import Sampler
from tasks.engines.llamacpp.slots import Slot
from tasks.engines.llamacpp.text import AnswerText
from tasks.engines.llamacpp.vocab import Vocab

log = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """A request, ready for the decode loop."""

    id: str
    tokens: Sequence[int]
    max_tokens: int  #: at least 1; what the window leaves is counted in
    stop: Sequence[str]
    sampling: Sampling
    is_chat: bool  #: the answer is a text of its own, not the prompt's continuation


class Generation:
    """A submitted request; its ticket, too. All but `cancel` belongs to the decode thread."""

    def __init__(self, prompt: Prompt, sink: FrameSink, on_cancel: Callable[["Generation"], None]) -> None:
        self.prompt = prompt
        self.slot: Slot | None = None
        self.sampler: Sampler | None = None
        self.is_cancelled = False
        self._sink = sink
        self._on_cancel = on_cancel
        self._text = AnswerText(prompt.stop)
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._unsent_tokens = 0  # sampled since the last delta
        self._started_s = self._first_token_s = 0.0

    def cancel(self) -> None:
        """See Ticket."""
        self.is_cancelled = True
        self._on_cancel(self)

    def start(self, slot: Slot, sampler: Sampler) -> None:
        """It has a slot, which holds `slot.n_kept` tokens of its prompt."""
        self.slot, self.sampler = slot, sampler
        self._cached_tokens = slot.n_kept
        self._started_s = time.perf_counter()

    def prefilled(self, done: int) -> None:
        self._sink.progress(done, len(self.prompt.tokens))

    def add(self, token: int, vocab: Vocab) -> FinishReason | None:
        """Take the token that was sampled. A reason: the answer ends with it.

        Every sampled token counts, one that ends the answer too, as llama-server counts them.
        """
        if not self._completion_tokens:
            self._first_token_s = time.perf_counter()
        is_first = not self._completion_tokens and self.prompt.is_chat
        self._completion_tokens += 1
        self._unsent_tokens += 1
        if vocab.is_eog(token):
            return FinishReason.STOP
        step = self._text.feed(vocab.first_piece(token) if is_first else vocab.piece(token))
        self._send(step.text)
        if step.stopped:
            self._text = AnswerText()  # what follows the stop text is not the answer's
            return FinishReason.STOP
        return FinishReason.LENGTH if self._completion_tokens >= self.prompt.max_tokens else None

    def finish(self, reason: FinishReason) -> None:
        step = self._text.finish()
        self._send(step.text)
        self._sink.finished(FinishReason.STOP if step.stopped else reason, self.usage(), self._timings())

    def fail(self, error: EngineError) -> None:
        self._sink.failed(error)

    def confirm_cancel(self) -> None:
        self._sink.cancelled(self.usage())

    def usage(self) -> Usage:
        return Usage(len(self.prompt.tokens), self._completion_tokens, self._cached_tokens)

    def free(self) -> None:
        """The slot and the sampler are not needed any more."""
        if self.sampler:
            self.sampler.free()
        self.slot = self.sampler = None

    def _send(self, text: str) -> None:
        if text:
            self._sink.delta(text, self._unsent_tokens)
            self._unsent_tokens = 0

    def _timings(self) -> Timings:
        return Timings(
            prompt_n=len(self.prompt.tokens) - self._cached_tokens,
            prompt_ms=(self._first_token_s - self._started_s) * 1000,
            predicted_n=self._completion_tokens,
            predicted_ms=(time.perf_counter() - self._first_token_s) * 1000,
        )
