"""The workers as this API process knows them: read from Redis every half second, answered from memory."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import redis

from api.job_types import ModelLoading, ModelNotFound, QueueUnavailable, WrongModelKind
from tasks.contracts import WORKERS_KEY, ModelInfo, WorkerState, WorkerStatus, worker_key

log = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_WHEN_UNREACHABLE_S = 2.0
RETRY_WHEN_LOADING_S = 5.0
RETURN_GRACE_S = 3.0  #: after Redis was away: heartbeats lapsed that nobody could renew


class WorkersView:
    """Polls the heartbeats. `on_change(lost)` is awaited after each poll that answered, with the (name, boot id) pairs
    that were there at the poll before and are not now."""

    def __init__(self, client: Any, on_change: Callable[[set[tuple[str, str]]], Awaitable[None]]) -> None:
        self._redis = client
        self._on_change = on_change
        self._workers: dict[str, WorkerState] = {}
        self._known: dict[str, ModelInfo] = {}  #: every model ever announced, for true answers while no worker is up
        self._task: asyncio.Task[None] | None = None
        self._grace_until = 0.0
        self.is_reachable = False

    async def start(self) -> None:
        """Poll once, so that the first request is answered well, then go on in the background."""
        await self._poll()
        self._task = asyncio.create_task(self._run(), name="workers-view")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def workers(self) -> list[WorkerState]:
        return sorted(self._workers.values(), key=lambda worker: worker.name)

    def get(self, name: str) -> WorkerState | None:
        return self._workers.get(name)

    def models(self) -> list[ModelInfo]:
        """What the live workers serve; with none alive, what was served last."""
        served = {model.id: model for worker in self.workers() for model in worker.models} or self._known
        return sorted(served.values(), key=lambda model: model.kind)

    def ready(self, model: str) -> list[WorkerState]:
        return [w for w in self.workers() if w.status is WorkerStatus.READY and any(m.id == model for m in w.models)]

    def require(self, model: str, kind: str) -> ModelInfo:
        """See api.job_types.Jobs.require."""
        if not self.is_reachable:
            raise QueueUnavailable("The queue (Redis) does not answer. Try again soon.", RETRY_WHEN_UNREACHABLE_S)
        info = next((m for worker in self.ready(model) for m in worker.models if m.id == model), self._known.get(model))
        if info is not None and info.kind != kind:
            uses = {"chat": "chat and text completions", "embedding": "embeddings"}
            others = [m.id for m in self.models() if m.kind == kind]
            instead = ", ".join(others) or "another server"
            raise WrongModelKind(f"The model '{model}' serves {uses[info.kind]}; for {uses[kind]} use {instead}.")
        if info is not None and self.ready(model):
            return info
        ready_models = [m.id for w in self.workers() if w.status is WorkerStatus.READY for m in w.models]
        if ready_models and info is None:
            raise ModelNotFound(model, ready_models)
        raise self._not_ready()

    def _not_ready(self) -> ModelLoading:
        by_status = {worker.status: worker for worker in self.workers()}
        if worker := by_status.get(WorkerStatus.DOWNLOADING):
            return ModelLoading(f"The model is being downloaded ({worker.progress:.0%}).", 30.0)
        if WorkerStatus.LOADING in by_status:
            return ModelLoading("The model is being loaded.", RETRY_WHEN_LOADING_S)
        if worker := by_status.get(WorkerStatus.FAILED):
            return ModelLoading(f"The model cannot be loaded: {worker.message}", 60.0)
        return ModelLoading("No worker is ready to serve this model.", RETRY_WHEN_LOADING_S)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._poll()
            except Exception:  # what one worker wrote must not blind this process to all of them
                log.exception("workers not read")

    async def _poll(self) -> None:
        try:
            names = [name.decode() for name in await self._redis.zrange(WORKERS_KEY, 0, -1)]
            values = await self._redis.mget([worker_key(name) for name in names]) if names else []
        except (redis.RedisError, OSError) as exc:
            if self.is_reachable:
                log.warning("redis does not answer: %s", type(exc).__name__)
            self.is_reachable = False
            return
        if not self.is_reachable:
            self._grace_until = time.monotonic() + RETURN_GRACE_S
        self.is_reachable = True
        states = [msgspec.msgpack.decode(value, type=WorkerState) for value in values if value is not None]
        present = {state.name: state for state in states}
        if time.monotonic() < self._grace_until:
            present = {**self._workers, **present}
        before = {(worker.name, worker.boot_id) for worker in self._workers.values()}
        self._workers = present
        self._known |= {model.id: model for state in states for model in state.models}
        await self._on_change(before - {(state.name, state.boot_id) for state in present.values()})
