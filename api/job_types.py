"""What routes see of the queue: a job's life as exceptions and events. No Redis, no Quart.

`JobClient` (api/jobs.py) is the real thing; `tests/unit/fake_jobs.py` is the one of the route tests.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from tasks.contracts import Delta, ErrorCode, Finished, GenerateRequest, ModelInfo, Progress, WorkerState

MAX_SHOWN = 100  #: characters of a client's own text in a message


class JobRefused(Exception):
    """The request was not run, and never will be."""

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

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class Job(Protocol):
    """One submitted generation. Leaving its context manager before the end cancels it, in whatever phase it is."""

    id: str
    queue_ms: float  #: time from submission to `started`; valid after `wait_started`

    async def wait_started(self) -> None:
        """Return when a worker runs it. Raises ServerBusy at the busy timeout, QueueUnavailable, RequestFailed."""

    def events(self) -> AsyncGenerator[Progress | Delta | Finished]:
        """Frames in order, adjacent deltas merged when the reader is slow; ends after Finished.

        Raises RequestFailed. Call once, after `wait_started`.
        """


class EmbeddingAnswer(NamedTuple):
    width: int
    vectors: list[bytes]  #: one per text, in order: little-endian float32 of norm 1
    prompt_tokens: int
    truncated: list[int]  #: indexes of the texts that were cut to the window
    queue_ms: float


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
        self, request_id: str, model: str, texts: list[str], patience_s: float | None = None
    ) -> EmbeddingAnswer:
        """Embed all texts, slice by slice. Cancelling the coroutine cancels the request.

        Raises ServerBusy (before the first slice ran), QueueUnavailable, RequestFailed (`param` names `input[i]`).
        """
