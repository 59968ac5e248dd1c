"""A first answer before the first request: missing memory and broken kernels show at the start, not to a user."""

import threading
from typing import Any

from tasks.contracts import FinishReason, GenerateRequest, Sampling, Timings, Usage
from tasks.engines.base import ChatEngine, EngineError, ModelLoadError

TIMEOUT_S = 600.0  #: a graph is compiled for some devices at the first step


class _WarmUpSink:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: EngineError | None = None

    def progress(self, done: int, total: int) -> None:
        """Not of interest."""

    def delta(self, *_: Any, **__: Any) -> None:
        """Not of interest."""

    def tool_call(self, *_: Any) -> None:
        """Not of interest."""

    def choice_finished(self, *_: Any) -> None:
        """Not of interest."""

    def finished(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        self.ended.set()

    def failed(self, error: EngineError) -> None:
        self.error = error
        self.ended.set()

    def cancelled(self, usage: Usage) -> None:
        self.ended.set()


def warm_up(engine: ChatEngine) -> None:
    """Answer one small request. Raises ModelLoadError."""
    sink = _WarmUpSink()
    greedy = Sampling(temperature=0)
    request = GenerateRequest(
        id="warm-up", model="", reply_to="", prompts=["Hello there"], max_tokens=2, sampling=greedy
    )
    engine.submit(request, sink)
    if not sink.ended.wait(TIMEOUT_S):
        raise ModelLoadError(f"the chat model did not give its first token within {TIMEOUT_S:.0f} s")
    if sink.error:
        raise ModelLoadError(f"the chat model does not work: {sink.error.message}")
