"""One request inside the engine process: turns what the engine says into frames, exactly one of them terminal."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tasks.contracts import (
    ChoiceFinished,
    Delta,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Frame,
    Progress,
    Timings,
    TokenLogprob,
    ToolCall,
    Usage,
)
from tasks.ended import Ended
from tasks.engines.base import EngineError, Ticket
from tasks.frames import FramePublisher
from tasks.outbox import Outbox

log = logging.getLogger(__name__)


class RequestRun:
    """FrameSink of one request. Its end is reported once, whoever ends it: the engine, a cancel, or a shutdown."""

    def __init__(
        self,
        request_id: str,
        outbox: Outbox,
        publisher: FramePublisher,
        on_ended: Callable[["RequestRun", Ended], None],
    ) -> None:
        self.request_id = request_id
        self.outbox = outbox
        self.ticket: Ticket | None = None
        self.lock = threading.RLock()
        self.active_at = time.monotonic()  #: when it last made progress, for the watchdog
        self._publisher = publisher
        self._on_ended = on_ended
        self._cancelled = threading.Event()
        self._failed = False
        self._ended = False

    # -- FrameSink, on the decode thread -----------------------------------------------------------

    def progress(self, done: int, total: int) -> None:
        self.active_at = time.monotonic()
        with self.lock:
            self.outbox.put(Progress, done, total)

    def delta(
        self,
        text: str,
        tokens: int,
        choice: int = 0,
        is_reasoning: bool = False,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        self._put(Delta, text, tokens, choice, is_reasoning, list(logprobs))

    def tool_call(self, choice: int, index: int, call_id: str, name: str, arguments: str) -> None:
        self._put(ToolCall, choice, index, call_id, name, arguments)

    def choice_finished(self, choice: int, reason: FinishReason) -> None:
        self._put(ChoiceFinished, choice, reason)

    def finished(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        with self.lock:
            if not self._failed:
                self.outbox.put(Finished, reason, usage, timings)
        log.info(
            "request finished",
            extra={
                "request_id": self.request_id,
                "finish_reason": reason.value,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
                "prompt_ms": round(timings.prompt_ms, 1),
                "predicted_ms": round(timings.predicted_ms, 1),
            },
        )
        self._end(Ended("finished", reason, usage, timings))

    def failed(self, error: EngineError) -> None:
        self.fail(error.code, error.message, error.param)
        self._end(Ended("failed"))

    def cancelled(self, usage: Usage) -> None:
        log.info(
            "request cancelled", extra={"request_id": self.request_id, "completion_tokens": usage.completion_tokens}
        )
        self._end(Ended("cancelled", usage=usage))

    # -- any thread --------------------------------------------------------------------------------

    def fail(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        """Tell the client, once. The engine may still be busy with it: `cancel` ends that."""
        with self.lock:
            if self._failed or self._ended:
                return
            self._failed = True
            self.outbox.put(Failed, code, message, param)
        log.warning("request failed", extra={"request_id": self.request_id, "code": code.value, "reason": message})

    def cancel(self) -> None:
        self._cancelled.set()
        with self.lock:
            ticket = self.ticket
        if ticket is not None:
            ticket.cancel()

    def is_cancelled(self) -> bool:
        """Asked by the embedder between two calls; that it asks is progress."""
        self.active_at = time.monotonic()
        return self._cancelled.is_set()

    def _put(self, kind: type[Frame], *fields: Any) -> None:
        self.active_at = time.monotonic()
        with self.lock:
            if not self._failed:
                self.outbox.put(kind, *fields)

    def _end(self, ended: Ended) -> None:
        with self.lock:
            if self._ended:
                return
            self._ended = True
        self._publisher.end(self.outbox)
        self._on_ended(self, ended)
