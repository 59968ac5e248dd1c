"""JobClient: the queue as the API uses it. It and its parts (dispatch, recovery, workers_view) alone know Redis."""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from api.dispatch import RETRY_WHEN_UNAVAILABLE_S, UNAVAILABLE, Dispatcher
from api.job import RESTARTABLE, JobState, QueuedJob
from api.job_types import EmbeddingAnswer, Job, JobRefused, QueueReport, QueueUnavailable, RequestFailed, ServerBusy
from api.keys import Caller
from api.queries import QueryClient
from api.queue_view import QueueView
from api.recovery import Recovery
from api.slices import reindexed, with_slice
from api.starvation import BatchTurns
from api.workers_view import WorkersView
from tasks.celery import redis_url
from tasks.contracts import (
    AnyFrame,
    EmbedRequest,
    ErrorCode,
    Failed,
    GenerateRequest,
    Lane,
    ModelInfo,
    Query,
    Replied,
    WorkerState,
)
from tasks.frames import FrameReceiver
from tasks.settings import Settings

log = logging.getLogger(__name__)

SLICE_WAIT_S = 3600.0  #: a later slice waits behind whatever chat got in between; its request is running already
CLAIM_CHECK_S = 0.5
SILENCE_CHECK_S = 0.5
UNREACHABLE_GRACE_S = 30.0  #: how long a request whose wait has lapsed is held for Redis to tell whether it ran


class JobClient:
    """See api.job_types.Jobs. One per API process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.api_id = secrets.token_hex(6)
        url = redis_url(settings)
        # 1 s bounds every command, so that a refusal comes within 2 s when the broker is gone or frozen
        limits: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": None}
        # the 51st command at a time waits for a connection; redis-py's default pool refuses the 101st
        pool = redis.asyncio.BlockingConnectionPool.from_url(url, timeout=1.0, **limits)
        self._redis: Any = redis.asyncio.Redis.from_pool(pool)
        self._jobs: dict[str, JobState] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._receiver = FrameReceiver(url, self.api_id, self._on_frame, self._on_connected)
        self._view = WorkersView(self._redis, self._on_lost)
        self._queries = QueryClient(self._redis, self._view, self.api_id)
        self._dispatcher = Dispatcher(settings, self._redis, self._view)
        self._recovery = Recovery(self._dispatcher, self._view, settings.busy_timeout_s, self._spawn)
        self._batch_turns = BatchTurns(self._dispatcher, settings.batch_max_wait_s)
        self._waits = QueueView(self._dispatcher.backlog, self._view, settings.admission)
        self._is_closing = False
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._receiver.start()
        await self._view.start()
        self._spawn(asyncio.to_thread(self._dispatcher.warm_up))
        self._watch = asyncio.create_task(self._watch_silence(), name="silence-watch")

    async def stop(self) -> None:
        """Cancel what is left, then close the connections."""
        self._dispatcher.is_closing = True
        if self._watch is not None:
            self._watch.cancel()
        jobs = list(self._jobs.values())
        await asyncio.gather(*(self._dispatcher.cancel(job) for job in jobs), return_exceptions=True)
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._view.stop()
        await self._receiver.stop()
        await self._redis.aclose()
        await asyncio.to_thread(self._dispatcher.close)

    def refuse_waiting(self) -> None:
        """This process shuts down: what waits gets its 503 now; what runs may end."""
        self._is_closing = True
        for state in self._jobs.values():
            if state.started_at is None and not state.ended:
                state.refuse()

    def end_running(self) -> None:
        """The time that answers had to become whole is over: each ends with an error, and frees its slot."""
        for state in self._jobs.values():
            if not state.ended:
                state.fail(ErrorCode.WORKER_SHUTDOWN, "The server was shut down before the answer was whole.")
                self._spawn(self._dispatcher.give_up(state))

    def workers(self) -> list[WorkerState]:
        return self._view.workers()

    def models(self) -> list[ModelInfo]:
        return self._view.models()

    def is_reachable(self) -> bool:
        return self._view.is_reachable and self._receiver.is_connected

    def require(self, model: str, kind: str) -> ModelInfo:
        return self._view.require(model, kind)

    async def query(self, model: str, query: Query) -> dict[str, Any]:
        return await self._queries.ask(model, query)

    async def queue(self, caller: Caller, ids: Sequence[str]) -> QueueReport:
        return await self._waits.report(caller, ids or [i for i, job in self._jobs.items() if not job.ended])

    # -- a generation ------------------------------------------------------------------------------

    @asynccontextmanager
    async def submit(self, request: GenerateRequest, patience_s: float | None = None) -> AsyncIterator[Job]:
        wait_s = self._patience(patience_s, request.lane)
        async with self.queued(request, wait_s, self._settings.max_queue, patience_s) as state:
            yield QueuedJob(state, self.wait_started)

    @asynccontextmanager
    async def queued(
        self,
        request: GenerateRequest | EmbedRequest,
        wait_s: float,
        max_queue: int,
        patience_s: float | None = None,
    ) -> AsyncIterator[JobState]:
        """A request in the queue; cancelled on leaving unless it has ended."""
        if self._is_closing:
            raise QueueUnavailable("The server is shutting down.", RETRY_WHEN_UNAVAILABLE_S)
        if not self._receiver.is_connected:
            raise QueueUnavailable(UNAVAILABLE, RETRY_WHEN_UNAVAILABLE_S)
        queue = self._dispatcher.queue_for(request.model, request.lane, request.share)
        state = JobState(request, queue, wait_s, math.inf if patience_s is None else patience_s)
        self._jobs[state.id] = state
        try:
            await self._dispatcher.send(state, max_queue)
            self._spawn(self._waits.expect(state))
            yield state
        except JobRefused as exc:
            exc.queue_ms = state.queue_ms()
            raise
        finally:
            # in the background: the handler may be in the middle of being cancelled
            self._spawn(self._close(state))

    async def wait_started(self, state: JobState) -> None:
        """Return when a worker runs it. Raises ServerBusy once it is sure that none ever will, or RequestFailed."""
        unreachable_since: float | None = None
        while not await state.wait_started():
            if time.monotonic() < state.deadline and not state.is_given_up():  # started again meanwhile, it waits anew
                continue
            attempt = state.attempt
            try:
                taken_by = await self._dispatcher.withdraw(state)
                if taken_by is not None:
                    await self._dispatcher.ask_for_missing(state)  # `started` should have arrived
            except (redis.RedisError, OSError):
                # whether it was taken is not known, so neither answer would be true yet
                unreachable_since = unreachable_since or time.monotonic()
                if time.monotonic() - unreachable_since > UNREACHABLE_GRACE_S:
                    raise QueueUnavailable(UNAVAILABLE, RETRY_WHEN_UNAVAILABLE_S) from None
                await asyncio.sleep(CLAIM_CHECK_S)
                continue
            if state.attempt != attempt:
                continue
            unreachable_since = None
            if taken_by is None:
                raise await self._refusal(state)
            state.refused, state.hopeless_s = False, None
            state.deadline = time.monotonic() + CLAIM_CHECK_S
            self._recovery.restart_if_lost(state, attempt, taken_by)
        self._waits.started(state)

    async def _refusal(self, state: JobState) -> QueueUnavailable | ServerBusy:
        """It has been withdrawn, so it never runs."""
        state.ended = True
        if state.refused:
            return QueueUnavailable("The server is shutting down.", RETRY_WHEN_UNAVAILABLE_S)
        if state.hopeless_s is not None:
            why = f"this request would wait about {state.hopeless_s:.0f} s, longer than it may"
            return ServerBusy(f"The server is busy: {why}.", state.hopeless_s)
        waited = f"no slot became free within {time.monotonic() - state.created:.1f} s"
        return await self._dispatcher.busy(state.queue, f"The server is busy: {waited}.")

    # -- embeddings --------------------------------------------------------------------------------

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
        """Slice by slice, the next sent when the one before has ended, so that chat gets in between."""
        sizes = [worker.embedding_batch_size for worker in self._view.ready(model)]
        size = min(sizes, default=self._settings.embedding_batch_size)
        answer = EmbeddingAnswer(0, [], 0, [], 0.0)
        for at in range(0, len(texts), size):
            request = EmbedRequest(
                id=request_id if at == 0 else f"{request_id}.{at // size}",
                model=model,
                reply_to=self.api_id,
                lane=lane,
                share=share,
                caller=caller,
                deadline_ms=deadline_ms if at == 0 else 0,  # with the first slice the answer has begun
                created_ms=int(time.time() * 1000),
                texts=texts[at : at + size],
            )
            # a later slice belongs to a request that runs: the lane's bound and the busy timeout are not for it
            first = (self._patience(patience_s, lane), self._settings.max_queue)
            wait_s, max_queue = first if at == 0 else (SLICE_WAIT_S, 0)
            try:
                async with self.queued(request, wait_s, max_queue, patience_s if at == 0 else None) as state:
                    await self.wait_started(state)
                    answer = await with_slice(answer, state, at)
            except RequestFailed as exc:
                exc.queue_ms = answer.queue_ms if at else exc.queue_ms
                raise reindexed(exc, at) from None
        return answer

    def _patience(self, patience_s: float | None, lane: Lane) -> float:
        """The busy timeout, or a little less than what the client waits, so that it hears the refusal.

        In the batch lane a client that says that it waits for longer may do so.
        """
        busy_timeout_s = self._settings.busy_timeout_s
        if patience_s is None:
            return busy_timeout_s
        longest_s = SLICE_WAIT_S if lane is Lane.BATCH else busy_timeout_s
        return min(longest_s, max(patience_s / 2, patience_s - 1.0))

    # -- what comes back ---------------------------------------------------------------------------

    def _on_frame(self, frame: AnyFrame) -> None:
        if isinstance(frame, Replied):
            self._queries.on_replied(frame)
            return
        state = self._jobs.get(frame.id)
        if state is None:
            return
        is_current = frame.attempt == state.attempt
        if isinstance(frame, Failed) and frame.code in RESTARTABLE and is_current and state.can_restart():
            self._recovery.restart(state)
            return
        had_gap = state.gap
        state.feed(frame)
        if state.gap and not had_gap:
            self._spawn(self._dispatcher.ask_for_missing(state))

    async def _on_connected(self) -> None:
        """After a (re)subscription frames may have gone by unheard."""
        for state in self._jobs.values():
            self._spawn(self._dispatcher.ask_for_missing(state))

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(SILENCE_CHECK_S)
            await self._batch_turns.give(self._jobs.values())
            with contextlib.suppress(redis.RedisError, OSError):  # asked again in a moment
                await self._recovery.ask_silent(self._jobs.values())

    async def _on_lost(self, lost: set[tuple[str, str]]) -> None:
        await self._recovery.workers_lost(lost, list(self._jobs.values()))

    async def _close(self, state: JobState) -> None:
        """The handler is done with it: cancel it unless it has ended, and forget it."""
        try:
            await self._dispatcher.cancel(state)
        finally:
            self._jobs.pop(state.id, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background; its error is logged."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._settle)

    def _settle(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.warning("background work failed", exc_info=exc)
