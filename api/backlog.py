"""What waits and what runs, read from Redis when somebody wants to know, and the waits that follow from it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import redis

from api.estimate import Estimate, EstimateErrors, Forecast, Queue, Speed
from api.workers_view import WorkersView
from tasks.claims import AsyncClaims, Waiting
from tasks.contracts import (
    Lane,
    RunningWork,
    WorkerState,
    WorkerStatus,
    queue_name,
    queue_parts,
    worker_key,
)

log = logging.getLogger(__name__)

READ_PAUSE_S = 0.03  #: between two readings, and so many times as long as the last one took: with a thousand requests
READ_PAUSES = 10  #: that wait it is some 5 ms of this process's time
MAX_READ_PAUSE_S = 0.3  #: a reading that was slow because the machine is busy does not put off the next one for long
READ_TIMEOUT_S = 1.5
QUICK_S = 0.3  #: how long a refusal waits for its estimate


class Group(NamedTuple):
    """Workers that serve the same models and share their queues, at one moment."""

    asked_at: float  #: monotonic
    now_ms: int  #: Redis's clock
    workers: list[WorkerState]
    queues: dict[Queue, list[Waiting]]
    forecast: Forecast

    def running(self) -> list[RunningWork]:
        return [work for worker in self.workers for work in worker.work]


class Backlog:
    """Of all groups. Used on the event loop only."""

    def __init__(self, client: Any, view: WorkersView) -> None:
        self._redis = client
        self._claims = AsyncClaims(client)
        self._view = view
        self._groups: dict[str, Group] = {}  #: by models key, as read last
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._pause_s = READ_PAUSE_S
        self.errors = EstimateErrors()

    def models(self) -> list[str]:
        """The groups that have a worker, by their models key."""
        parts = (queue_parts(worker.queues.get(Lane.INTERACTIVE.value, "")) for worker in self._view.workers())
        return sorted({part.models for part in parts if part is not None})

    async def group(self, models: str) -> Group:
        """As it is now or will be in a moment: never older than this call. Those who ask together get the same one.

        Raises redis.RedisError, OSError (TimeoutError too).
        """
        asked_at = time.monotonic()
        while (group := self._groups.get(models)) is None or group.asked_at < asked_at:
            if models not in self._reading:
                self._reading[models] = task = asyncio.create_task(self._read(models))
                task.add_done_callback(_retrieve)
            async with asyncio.timeout(READ_TIMEOUT_S):
                await asyncio.shield(self._reading[models])
        return group

    async def estimate(self, queue: str, claim: str) -> Estimate | None:
        """Of a request that was submitted before this call; None: it waits no more. Raises RedisError, OSError."""
        parts = queue_parts(queue)
        return None if parts is None else (await self.group(parts.models)).forecast.of(claim)

    async def estimate_new(self, queue: str) -> Estimate | None:
        """Of one that joined the queue now. While Redis is slow, of one that joined when it was not; None: unknown."""
        parts = queue_parts(queue)
        if parts is None:
            return None
        try:
            async with asyncio.timeout(QUICK_S):
                group: Group | None = await self.group(parts.models)
        except (redis.RedisError, OSError):
            group = self._groups.get(parts.models)
        return None if group is None else group.forecast.of_new(Queue(parts.lane, parts.share))

    async def _read(self, models: str) -> None:
        try:
            last = self._groups.get(models)
            if last is not None:
                await asyncio.sleep(max(0.0, last.asked_at + self._pause_s - time.monotonic()))
            began = time.monotonic()
            self._groups[models] = await self._group_now(models)
            took_s = time.monotonic() - began
            self._pause_s = min(max(READ_PAUSE_S, READ_PAUSES * took_s), MAX_READ_PAUSE_S)
        finally:
            del self._reading[models]

    async def _group_now(self, models: str) -> Group:
        asked_at = time.monotonic()
        known = [worker for worker in self._view.workers() if _serves(worker, models)]
        shares = max((worker.shares for worker in known), default=1)
        names = {queue_name(lane, models, share): Queue(lane, share) for lane in Lane for share in range(shares)}
        backlog, beats = await asyncio.gather(
            self._claims.backlog(list(names)), self._redis.mget([worker_key(worker.name) for worker in known] or ["-"])
        )
        workers = [msgspec.msgpack.decode(beat, type=WorkerState) for beat in beats if beat is not None]
        ready = [worker for worker in workers if worker.status is WorkerStatus.READY]
        queues = {names[name]: waiting for name, waiting in backlog.queues.items()}
        return Group(asked_at, backlog.now_ms, ready, queues, forecast(ready, queues, backlog.now_ms))


def forecast(workers: Sequence[WorkerState], queues: dict[Queue, list[Waiting]], now_ms: int) -> Forecast:
    windows = [model.n_ctx for worker in workers for model in worker.models if model.kind == "chat"]
    speed = Speed(
        [worker.rates for worker in workers],
        max((worker.max_tokens for worker in workers), default=0),
        max(windows, default=0),
    )
    running = [(work, max(0.0, (now_ms - work.began_ms) / 1000)) for worker in workers for work in worker.work]
    return Forecast(speed, sum(worker.slots for worker in workers), running, queues)


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Those who wait for it hear of its error; there may be none left."""
    if not task.cancelled():
        task.exception()


def _serves(worker: WorkerState, models: str) -> bool:
    parts = queue_parts(worker.queues.get(Lane.INTERACTIVE.value, ""))
    return parts is not None and parts.models == models
