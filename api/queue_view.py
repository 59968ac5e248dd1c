"""The queue as its users are told of it: how much waits and runs, how fast, and when it is their turn."""

import asyncio
import time
from collections.abc import Iterable

import redis

from api.backlog import Backlog, Group
from api.estimate import Queue
from api.job import JobState
from api.job_types import GroupReport, LaneReport, QueueReport, QueueUnavailable, RequestReport
from api.keys import Caller
from api.workers_view import WorkersView
from tasks.contracts import Lane, Work

UNAVAILABLE = "The queue (Redis) does not answer. Try again soon."
RETRY_S = 2.0
HOPELESS = 1.5  #: a request whose wait is estimated at more than so many times what it may be is refused at once


class QueueView:
    """Answers questions about the queue, and compares what it has answered with what came of it."""

    def __init__(self, backlog: Backlog, view: WorkersView, admission: str) -> None:
        self._backlog = backlog
        self._refuses = admission == "estimate"
        self._view = view

    async def expect(self, state: JobState) -> None:
        """Note how long a request that has just been sent is expected to wait; nothing where a slot seems to be free.

        With LIS_ADMISSION=estimate one that would wait far beyond its deadline, as measured, is given up: its handler
        withdraws and refuses it, unless a worker was faster. A guess refuses nobody.
        """
        if not self._refuses and state.waiting_before == 0 and self._had_free_slot(state.queue):
            return
        at = time.monotonic()
        try:
            estimate = await self._backlog.estimate(state.queue, state.claim)
        except (redis.RedisError, OSError):
            return
        if estimate is None or not estimate.is_measured or state.started_at is not None:
            return
        state.estimate = (estimate.wait_s, at)
        if self._refuses and state.attempt == 1 and estimate.wait_s > HOPELESS * (state.deadline - time.monotonic()):
            state.give_up_hope(estimate.wait_s)

    def started(self, state: JobState) -> None:
        """It runs: so long was the wait. A second attempt's is another than the one that was estimated."""
        if state.estimate is not None and state.started_at is not None and state.attempt == 1:
            wait_s, at = state.estimate
            self._backlog.errors.add(wait_s, state.started_at - at)
        state.estimate = None

    async def report(self, caller: Caller, ids: Iterable[str]) -> QueueReport:
        """`ids` of requests whose place is wanted; those of other callers are as if they were not there.

        Raises QueueUnavailable.
        """
        if not self._view.is_reachable:
            raise QueueUnavailable(UNAVAILABLE, RETRY_S)
        try:
            groups = await asyncio.gather(*(self._backlog.group(models) for models in self._backlog.models()))
        except (redis.RedisError, OSError):
            raise QueueUnavailable(UNAVAILABLE, RETRY_S) from None
        wanted = set(ids)
        requests = [found for group in groups for found in _requests(group, caller, wanted)]
        errors = self._backlog.errors
        return QueueReport([_group(group, caller) for group in groups], requests, errors.median(), errors.count)

    def _had_free_slot(self, queue: str) -> bool:
        """Half a second ago; costs nothing."""
        workers = [worker for worker in self._view.workers() if queue.startswith(tuple(worker.queues.values()))]
        return any(len(worker.running) < worker.slots for worker in workers)


def _group(group: Group, caller: Caller) -> GroupReport:
    running = group.running()
    lanes = {}
    for lane in Lane:
        lanes[lane.value] = LaneReport(
            waiting=sum(len(waiting) for queue, waiting in group.queues.items() if queue.lane is lane),
            running=sum(one.lane == lane.value for one in running),
            estimate=group.forecast.of_new(Queue(lane, caller.share)),
        )
    models = sorted({model.id for worker in group.workers for model in worker.models})
    slots = sum(worker.slots for worker in group.workers)
    return GroupReport(models, len(group.workers), slots, lanes, group.forecast.speed)


def _requests(group: Group, caller: Caller, wanted: set[str]) -> Iterable[RequestReport]:
    for one in group.running():
        if is_of(one.work, caller) and request_id(one.id) in wanted:
            yield RequestReport(request_id(one.id), one.lane, 0, one.began_ms / 1000, 0.0, True)
    for queue, waiting in group.queues.items():
        for entry in waiting:
            if not is_of(entry.work, caller) or request_id(entry.claim) not in wanted:
                continue
            estimate = group.forecast.of(entry.claim)
            assert estimate is not None
            starts = group.now_ms / 1000 + estimate.wait_s
            yield RequestReport(
                request_id(entry.claim),
                queue.lane.value,
                estimate.position,
                starts,
                estimate.wait_s,
                estimate.is_measured,
            )


def is_of(work: Work, caller: Caller) -> bool:
    return (work.caller, work.share) == (caller.name, caller.share)


def request_id(claim: str) -> str:
    """Of a claim's attempt and slice the request."""
    return claim.partition("~")[0].partition(".")[0]
