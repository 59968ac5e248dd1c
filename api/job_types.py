"""What routes see of the queue: a job's life as exceptions and events. No Redis, no Quart.

`JobClient` (api/jobs.py) is the real thing; `tests/unit/fake_jobs.py` is the one of the route tests.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from api.estimate import Estimate, Speed
from api.keys import Caller
from tasks.contracts import (
    ChoiceFinished,
    Delta,
    ErrorCode,
    Finished,
    GenerateRequest,
    Lane,
    ModelInfo,
    Progress,
    Query,
    ToolCall,
    WorkerState,
)

#: what a generation tells: choices come one after the other, Finished ends the last
Event = Progress | Delta | ToolCall | ChoiceFinished | Finished

MAX_SHOWN = 100  #: characters of a client's own text in a message


class JobRefused(Exception):
    """The request was not run, and never will be."""

    queue_ms: float | None = None  #: how long it had waited; None: it was not queued at all

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class ServerBusy(JobRefused):
    """The lane is full, or nobody took the request before the busy timeout."""


class QueueUnavailable(JobRefused):
    """Redis does not answer."""


class ModelLoading(JobRefused):
    """No worker is ready: it downloads, loads, failed to load, or none is online. The message says which."""


class ModelNotFound(Exception):
    def __init__(self, model: str, served: Sequence[str]) -> None:
        shown = model if len(model) <= MAX_SHOWN else model[:MAX_SHOWN] + "…"
        super().__init__(f"The model '{shown}' does not exist here. Served models: {', '.join(served) or 'none'}.")


class WrongModelKind(Exception):
    """An embedding model asked to chat, or the reverse. `str()` says which model does what."""


class RequestFailed(Exception):
    """The worker ended the request without an answer, before or after its first token."""

    queue_ms: float | None = None  #: how long it had waited; None: it was not queued at all

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def reworded(self, message: str, param: str | None) -> "RequestFailed":
        """The same failure in other words."""
        failure = RequestFailed(self.code, message, param)
        failure.queue_ms = self.queue_ms
        return failure


class Job(Protocol):
    """One submitted generation. Leaving its context manager before the end cancels it, in whatever phase it is."""

    id: str
    queue_ms: float  #: time from submission to `started`; valid after `wait_started`

    async def wait_started(self) -> None:
        """Return when a worker runs it. Raises ServerBusy at the busy timeout, QueueUnavailable, RequestFailed."""

    def events(self) -> AsyncGenerator[Event]:
        """Frames in order, adjacent deltas merged when the reader is slow; ends after Finished.

        Raises RequestFailed. Call once, after `wait_started`.
        """


class EmbeddingAnswer(NamedTuple):
    width: int
    vectors: list[bytes]  #: one per text, in order: little-endian float32 of norm 1
    prompt_tokens: int
    truncated: list[int]  #: indexes of the texts that were cut to the window
    queue_ms: float


class LaneReport(NamedTuple):
    waiting: int
    running: int
    estimate: Estimate  #: of a request of the caller that came now


class GroupReport(NamedTuple):
    """Workers that serve the same models."""

    models: list[str]
    workers: int  #: that are ready
    slots: int
    lanes: dict[str, LaneReport]
    speed: Speed


class RequestReport(NamedTuple):
    """A request of the caller that has not ended."""

    id: str
    lane: str
    position: int  #: of the waiting ones of all lanes, from 1; 0: it runs
    starts_at: float  #: unix time (s, Redis's clock): expected, or when it did
    wait_s: float  #: still to be expected
    is_measured: bool  #: False: the estimate is in part a guess


class QueueReport(NamedTuple):
    groups: list[GroupReport]
    requests: list[RequestReport]
    median_error: float | None  #: of the last estimates of this process, relative to the wait; None: too few
    errors: int  #: how many estimates that is the median of


class Jobs(Protocol):
    """The queue, as routes see it."""

    api_id: str

    def workers(self) -> list[WorkerState]:
        """Live workers, from memory: never waits."""

    def models(self) -> list[ModelInfo]:
        """Models of the ready workers, chat before embedding. From memory."""

    def is_reachable(self) -> bool:
        """Redis answered lately."""

    def require(self, model: str, kind: str) -> ModelInfo:
        """The served model of this kind (`chat`, `embedding`).

        Raises ModelNotFound, WrongModelKind, ModelLoading, QueueUnavailable.
        """

    def submit(self, request: GenerateRequest, patience_s: float | None = None) -> AbstractAsyncContextManager[Job]:
        """Enqueue. `patience_s`: how long the client says it waits, when shorter than the busy timeout.

        Entering raises ServerBusy (lane full), QueueUnavailable.
        """

    async def embed(
        self,
        request_id: str,
        model: str,
        texts: list[str],
        patience_s: float | None = None,
        lane: Lane = Lane.INTERACTIVE,
        share: int = 0,
        caller: str = "",
        deadline_ms: int = 0,
    ) -> EmbeddingAnswer:
        """Embed all texts, slice by slice. Cancelling the coroutine cancels the request.

        Raises ServerBusy (before the first slice ran), QueueUnavailable, RequestFailed (`param` names `input[i]`).
        """

    async def query(self, model: str, query: Query) -> dict[str, Any]:
        """What a worker that serves the chat model says to a question about tokens: within 3 s, beside the queue.

        Raises as `require`, QueueUnavailable also when no worker answers, RequestFailed.
        """

    async def queue(self, caller: Caller, ids: Sequence[str]) -> QueueReport:
        """What waits and runs, and the places of the caller's requests `ids`; with none named, of all that this process
        has. Within 2 s. Raises QueueUnavailable."""
