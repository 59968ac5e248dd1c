"""One request from its submission to its last frame: its choices, one after the other, in one slot."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from tasks.contracts import FinishReason, Timings, Usage
from tasks.engines.base import EngineError, FrameSink
from tasks.engines.llamacpp.choice import Choice
from tasks.engines.llamacpp.logits import Logits
from tasks.engines.llamacpp.model import ChatModel
from tasks.engines.llamacpp.prompt import Prompt
from tasks.engines.llamacpp.slots import Slot


class Generation:
    """A submitted request; its ticket, too. All but `cancel` belongs to the decode thread."""

    def __init__(self, prompt: Prompt, sink: FrameSink, on_cancel: Callable[["Generation"], None]) -> None:
        self.prompt = prompt
        self.slot: Slot | None = None
        self.is_cancelled = False
        self._sink = sink
        self._on_cancel = on_cancel
        self._choice: Choice | None = None
        self._n_begun = 0  # choices, with the one that runs
        self._n_prompt_tokens = sum(map(len, prompt.prompts))
        self._cached_tokens = 0
        self._completion_tokens = self._reasoning_tokens = 0  # of the choices before
        self._started_s = self._choice_started_s = 0.0
        self._prompt_s = 0.0  # prefill of each prompt's first choice

    def cancel(self) -> None:
        """See Ticket."""
        self.is_cancelled = True
        self._on_cancel(self)

    @property
    def next_tokens(self) -> Sequence[int]:
        """The prompt of the choice that is to begin next."""
        return self.prompt.prompts[self._n_begun // self.prompt.n]

    @property
    def has_more(self) -> bool:
        """There is a choice that has not begun."""
        return self._n_begun < self.prompt.n_choices

    def begin_choice(self, slot: Slot, model: ChatModel, logits: Logits) -> None:
        """The next one. The slot has its prompt, and holds `slot.n_kept` tokens of it."""
        self._choice_started_s = time.perf_counter()
        if not self._n_begun:
            self._started_s = self._choice_started_s
        self.slot = slot
        number = self._n_begun
        self._n_begun += 1
        if self._prefills:
            self._cached_tokens += slot.n_kept
        self._choice = Choice(number, self.prompt, model, logits, self._sink)

    def prefilled(self, done: int) -> None:
        """So many tokens of the choice's prompt are in the cache. A prompt's later choices say nothing of it."""
        if self._prefills:
            before = sum(map(len, self.prompt.prompts[: self._running.number // self.prompt.n]))
            self._sink.progress(before + done, self._n_prompt_tokens)

    def sample(self, context: Any, row: int) -> int | None:
        """See Choice."""
        choice = self._running
        if not choice.n_tokens and self._prefills:
            self._prompt_s += time.perf_counter() - self._choice_started_s
        return choice.sample(context, row)

    def add(self, token: int) -> FinishReason | None:
        """See Choice."""
        return self._running.add(token)

    def finish_choice(self, reason: FinishReason) -> None:
        """The choice is whole, and there is another one."""
        choice = self._running
        self._sink.choice_finished(choice.number, choice.finish(reason))
        self._completion_tokens += choice.n_tokens
        self._reasoning_tokens += choice.n_reasoning_tokens
        choice.free()
        self._choice = None

    def finish(self, reason: FinishReason) -> None:
        """The last choice is whole."""
        self._sink.finished(self._running.finish(reason), self.usage(), self._timings())

    def fail(self, error: EngineError) -> None:
        self._sink.failed(error)

    def confirm_cancel(self) -> None:
        self._sink.cancelled(self.usage())

    def usage(self) -> Usage:
        choice = self._choice
        return Usage(
            prompt_tokens=self._n_prompt_tokens,
            completion_tokens=self._completion_tokens + (choice.n_tokens if choice else 0),
            cached_tokens=self._cached_tokens,
            reasoning_tokens=self._reasoning_tokens + (choice.n_reasoning_tokens if choice else 0),
        )

    def free(self) -> None:
        """The slot and the sampler are not needed any more."""
        if self._choice:
            self._choice.free()
        self.slot = None

    @property
    def _running(self) -> Choice:
        assert self._choice
        return self._choice

    @property
    def _prefills(self) -> bool:
        """The choice that runs is the first of its prompt."""
        return (self._n_begun - 1) % self.prompt.n == 0

    def _timings(self) -> Timings:
        return Timings(
            prompt_n=self._n_prompt_tokens - self._cached_tokens,
            prompt_ms=self._prompt_s * 1000,
            predicted_n=self.usage().completion_tokens,
            predicted_ms=(time.perf_counter() - self._started_s - self._prompt_s) * 1000,
        )
