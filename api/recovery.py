"""Requests whose worker died: once more elsewhere, or an error at once. Nobody waits for a dead worker."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import redis

from api.dispatch import Dispatcher
from api.job import JobState
from api.job_types import QueueUnavailable, ServerBusy
from api.workers_view import WorkersView
from tasks.contracts import ErrorCode

log = logging.getLogger(__name__)

LOST_MESSAGE = "The worker that ran this request was lost."
CHECK_S = 0.5


class Recovery:
    """Restarts or fails jobs. `spawn` runs a coroutine in the background."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        view: WorkersView,
        busy_timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._view = view
        self._busy_timeout_s = busy_timeout_s
        self._spawn = spawn

    async def workers_lost(self, lost: set[tuple[str, str]], jobs: Iterable[JobState]) -> None:
        """These workers (name, boot id) are gone."""
        for state in jobs:
            if state.worker in lost:
                await self.restart_or_fail(state)
            elif state.worker is None and not state.ended:
                self._spawn(self._check_holder(state))  # it may have been claimed a moment before the death

    async def restart_if_lost(self, state: JobState, taken_by: str) -> None:
        """`taken_by` is the claim's value, `worker#boot`."""
        name, _, boot_id = taken_by.partition("#")
        worker = self._view.get(name)
        if self._view.is_reachable and (worker is None or worker.boot_id != boot_id):
            await self.restart_or_fail(state)

    async def restart_or_fail(self, state: JobState) -> None:
        if state.can_restart():
            await self.restart(state)
        else:
            state.fail(ErrorCode.WORKER_LOST, LOST_MESSAGE)

    async def restart(self, state: JobState) -> None:
        """Put it into the queue again, once; nothing of its answer has reached the client."""
        log.warning("request starts again", extra={"request_id": state.id, "attempt": state.attempt + 1})
        state.restart()
        state.deadline = time.monotonic() + self._busy_timeout_s
        try:
            await self._dispatcher.send(state, self._busy_timeout_s, 0)
        except (QueueUnavailable, ServerBusy) as exc:
            state.fail(ErrorCode.WORKER_LOST, f"{LOST_MESSAGE} {exc.message}")
        else:
            if state.started_at is not None:  # its handler no longer waits for a slot, so the lapse is watched here
                self._spawn(self._watch_second_wait(state))

    async def _check_holder(self, state: JobState) -> None:
        taken_by = await self._dispatcher.holder(state)
        if taken_by is not None:
            await self.restart_if_lost(state, taken_by)

    async def _watch_second_wait(self, state: JobState) -> None:
        while state.worker is None and not state.ended:
            await asyncio.sleep(CHECK_S)
            if time.monotonic() < state.deadline:
                continue
            try:
                taken_by = await self._dispatcher.withdraw(state)
            except (redis.RedisError, OSError):
                continue  # whether it was taken is not known yet
            if taken_by is None:
                state.fail(ErrorCode.WORKER_LOST, f"{LOST_MESSAGE} No other became free in time.")
            else:
                await self.restart_if_lost(state, taken_by)
