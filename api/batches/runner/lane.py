"""Requests of batches in the queue. Nobody waits for them at a socket: what is refused is sent again."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import redis

from api.batches.cancelling import check_cancelled
from api.batches.live import LiveBatches
from api.batches.records import BatchRecord
from api.job import JobState
from api.job_types import JobRefused, RequestFailed
from api.protocol.choices import Answer, AnswerBuilder
from tasks.contracts import (
    EmbedRequest,
    ErrorCode,
    Finished,
    GenerateRequest,
    Lane,
    ModelInfo,
    Progress,
    Vectors,
    WorkerState,
    WorkerStatus,
    new_request_id,
)

log = logging.getLogger(__name__)

WAIT_S = 300.0  #: then it is sent again: its message may have been lost with a broker
CHECK_S = 2.0  #: between two looks whether the broker still knows it
PAUSE_S, MAX_PAUSE_S = 0.25, 2.0  #: after a refusal

Result = TypeVar("Result")


class Queue(Protocol):
    """JobClient, as far as batches need it."""

    api_id: str

    def workers(self) -> list[WorkerState]: ...

    def queued(
        self, request: GenerateRequest | EmbedRequest, wait_s: float, max_queue: int, patience_s: float | None = None
    ) -> AbstractAsyncContextManager[JobState]: ...

    async def wait_started(self, state: JobState) -> None: ...


class SliceAnswer(NamedTuple):
    width: int
    rows: list[bytes]  #: little-endian float32, one row per text
    tokens: list[int]  #: of each text; empty: the worker does not tell
    prompt_tokens: int
    truncated: list[int]
    busy_s: float  #: of the engine


class Generated(NamedTuple):
    answer: Answer
    queue_ms: float


class BatchLane:
    """One per API process."""

    def __init__(self, queue: Queue, live: LiveBatches) -> None:
        self._queue = queue
        self._live = live

    def ready(self, model: str) -> list[WorkerState]:
        """The workers that serve the model now."""
        workers = (worker for worker in self._queue.workers() if worker.status is WorkerStatus.READY)
        return [worker for worker in workers if any(info.id == model for info in worker.models)]

    def info(self, model: str) -> ModelInfo | None:
        return next((info for worker in self.ready(model) for info in worker.models if info.id == model), None)

    async def embed(self, batch: BatchRecord, texts: list[str]) -> SliceAnswer:
        """Raises RequestFailed; never because nobody is there to run it."""
        request = EmbedRequest(
            id="",
            model=batch.model,
            reply_to=self._queue.api_id,
            lane=Lane.BATCH,
            share=batch.share,
            caller=batch.key_name,
            created_ms=int(time.time() * 1000),
            texts=texts,
        )

        async def run(first_s: float) -> SliceAnswer:
            sent = msgspec.structs.replace(request, id=new_request_id("embd"))
            async with self._queue.queued(sent, WAIT_S, 0) as state:
                await self._started(state, first_s)
                return await _slice_answer(state)

        return await self._until_run(run, batch.id)

    async def generate(self, request: GenerateRequest, batch: BatchRecord) -> Generated:
        """`request.id` is that of the answer: in the queue each sending has one of its own, which begins with it.

        Raises RequestFailed; never because nobody is there to run it.
        """
        request = msgspec.structs.replace(
            request, reply_to=self._queue.api_id, lane=Lane.BATCH, share=batch.share, caller=batch.key_name
        )

        async def run(first_s: float) -> Generated:
            sent = msgspec.structs.replace(request, id=f"{request.id}.{secrets.token_hex(4)}")
            async with self._queue.queued(sent, WAIT_S, 0) as state:
                await self._started(state, first_s)
                return Generated(await _generated(state), state.queue_ms())

        return await self._until_run(run, batch.id)

    async def _until_run(self, run: Callable[[float], Awaitable[Result]], batch_id: str) -> Result:
        first_s = time.monotonic()
        pause_s = PAUSE_S
        while True:
            try:
                return await run(first_s)
            except JobRefused as exc:
                why = exc.message
            except RequestFailed as exc:
                if exc.code is not ErrorCode.WORKER_SHUTDOWN:
                    raise
                why = exc.message
            check_cancelled()
            log.debug("request of a batch waits: %s", why, extra={"batch_id": batch_id})
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    async def _started(self, state: JobState, first_s: float) -> None:
        """Return when a worker runs it. Raises JobRefused also when the broker has forgotten it."""
        state.may_restart = False  # whoever counts the deaths must see each one
        state.created = first_s  # its turn between interactive requests counts from the first sending
        waiting = asyncio.ensure_future(self._queue.wait_started(state))
        was_missing = False
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=CHECK_S)
                check_cancelled()
                is_missing = state.is_waiting() and await self._is_forgotten(state)
                if is_missing and was_missing:  # twice, so that it was not just taken or released
                    raise JobRefused("The broker has lost the request.")
                was_missing = is_missing
            await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _is_forgotten(self, state: JobState) -> bool:
        with contextlib.suppress(redis.RedisError, OSError):
            return not await self._live.has_claim(state.claim)
        return False


async def _slice_answer(state: JobState) -> SliceAnswer:
    vectors: Vectors | None = None
    finished: Finished | None = None
    async with aclosing(state.events()) as events:
        async for event in events:
            if isinstance(event, Vectors):
                vectors = event
            elif isinstance(event, Finished):
                finished = event
    assert vectors is not None and finished is not None
    row = vectors.width * 4
    rows = [vectors.data[at : at + row] for at in range(0, len(vectors.data), row)]
    busy_s = finished.timings.prompt_ms / 1000
    return SliceAnswer(vectors.width, rows, vectors.tokens, finished.usage.prompt_tokens, vectors.truncated, busy_s)


async def _generated(state: JobState) -> Answer:
    builder = AnswerBuilder()
    async with aclosing(state.events()) as events:
        async for event in events:
            if isinstance(event, Finished):
                return builder.end(event)
            if not isinstance(event, Progress | Vectors):
                builder.add(event)
    raise AssertionError("the events end with Finished")


class Slots:
    """How many requests are in flight: `limit()` is asked each time."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Event()

    async def acquire(self) -> None:
        while self._used >= self._limit():
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), CHECK_S)  # the limit may have grown
            check_cancelled()
        self._used += 1

    def release(self) -> None:
        self._used -= 1
        self._freed.set()
