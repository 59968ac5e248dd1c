"""Requests whose worker died: once more elsewhere, or an error at once. Nobody waits for a dead worker."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

import redis

from api.dispatch import Dispatcher
from api.job import JobState
from api.job_types import QueueUnavailable, ServerBusy
from api.workers_view import WorkersView
from tasks.claims import Owner
from tasks.contracts import ErrorCode, WorkerState

log = logging.getLogger(__name__)

LOST_MESSAGE = "The worker that ran this request was lost."
CHECK_S = 0.5
FORGOTTEN_S = 4.0  #: asked for its frames for so long, a worker would have answered; its heartbeat is younger than 2 s
SILENT_S = 1.5  #: a running request of which nothing was heard for so long may have lost a frame


class Recovery:
    """Restarts or fails jobs, and asks for lost frames. `spawn` runs a coroutine in the background."""

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
        unclaimed = []
        for state in jobs:
            if state.worker in lost:
                self.restart_or_fail(state)
            elif state.worker is None and not state.ended:
                unclaimed.append(state)
        if unclaimed:
            self._spawn(self._check_holders(unclaimed))  # one may have been claimed a moment before the death

    def restart_if_lost(self, state: JobState, attempt: int, taken_by: Owner) -> None:
        """`taken_by` has claimed this attempt; do nothing when that has been settled meanwhile."""
        if state.attempt != attempt or state.ended or not self._view.is_reachable:
            return
        worker = self._view.get(taken_by.worker)
        if worker is None or worker.boot_id != taken_by.boot_id or self._is_forgotten(state, worker):
            self.restart_or_fail(state)

    def restart_or_fail(self, state: JobState) -> None:
        if state.can_restart():
            self.restart(state)
        else:
            state.fail(ErrorCode.WORKER_LOST, LOST_MESSAGE)

    def restart(self, state: JobState) -> None:
        """Put it into the queue again, once; nothing of its answer has reached the client.

        The state changes at once: a second message that tells of the same loss is one of an old attempt.
        """
        log.warning("request starts again", extra={"request_id": state.id, "attempt": state.attempt + 1})
        state.restart()
        state.wait_anew(self._busy_timeout_s)
        self._spawn(self._send_again(state))

    async def ask_silent(self, jobs: Collection[JobState]) -> None:
        """Ask again for the frames of requests that have gone silent: the question, too, may get lost."""
        horizon = time.monotonic() - SILENT_S
        for state in list(jobs):
            if state.started_at is not None and not state.ended and state.heard_at < horizon:
                if state.worker is not None:
                    self.restart_if_lost(state, state.attempt, Owner(*state.worker))
                await self._dispatcher.ask_for_missing(state)

    def _is_forgotten(self, state: JobState, worker: WorkerState) -> bool:
        """The worker does not have it, and sends none of its frames: the one that told of its end was lost, and the
        engine process that could send it again is gone."""
        asked_at = state.asked_at
        is_silent = asked_at is not None and time.monotonic() - asked_at > FORGOTTEN_S
        return is_silent and state.id not in worker.running

    async def _send_again(self, state: JobState) -> None:
        try:
            await self._dispatcher.send(state, 0)
        except (QueueUnavailable, ServerBusy) as exc:
            state.fail(ErrorCode.WORKER_LOST, f"{LOST_MESSAGE} {exc.message}")
            return
        if state.ended:  # the client left in between
            await self._dispatcher.give_up(state)
        elif state.started_at is not None:  # its handler no longer waits for a slot, so the lapse is watched here
            await self._watch_second_wait(state)

    async def _check_holders(self, states: list[JobState]) -> None:
        """One question for all of them: a thousand may wait."""
        attempts = [state.attempt for state in states]
        for state, attempt, taken_by in zip(states, attempts, await self._dispatcher.holders(states), strict=True):
            if taken_by is not None:
                self.restart_if_lost(state, attempt, taken_by)

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
            elif state.worker is None:
                self.restart_if_lost(state, state.attempt, taken_by)
                await self._dispatcher.ask_for_missing(state)  # `started` has not arrived
