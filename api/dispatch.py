"""Putting a request into the queue, and taking it out again."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import redis
from kombu.exceptions import KombuError, OperationalError

from api.backlog import Backlog
from api.job import JobState
from api.job_types import QueueUnavailable, ServerBusy
from api.workers_view import WorkersView
from tasks.celery import producer
from tasks.claims import FIRST_LEASE_MS, AsyncClaims, Owner, owner_of
from tasks.contracts import (
    CANCELLED_TTL_S,
    CHAT_TASK,
    EMBED_TASK,
    Control,
    GenerateRequest,
    Lane,
    WorkerState,
    cancelled_key,
    claim_key,
    control_channel,
    queue_name,
    queue_parts,
    work_of,
)
from tasks.settings import Settings

log = logging.getLogger(__name__)

UNAVAILABLE = "The queue (Redis) does not answer. Try again soon."
FULL = "The queue (Redis) has no memory left. Try again soon."
RETRY_WHEN_UNAVAILABLE_S = 2.0
BROKER_ERRORS = (redis.RedisError, OSError, OperationalError, KombuError)
TOO_LATE = "The server is busy: the client waits for too short a time."
PUBLISH_TIMEOUT_S = 1.2  #: its sockets give up after 1 s each, and kombu may use two
PUBLISHERS = 4  #: threads and connections that publish; more are not faster
CANCEL_PAUSE_S = 0.3
CANCEL_GIVE_UP_S = 60.0


class _Refused(Exception):
    """The lane is full, or the request came too late. `str()` says which."""


class Dispatcher:
    """Claims and messages of one API process."""

    def __init__(self, settings: Settings, client: Any, view: WorkersView) -> None:
        self._settings = settings
        self._redis = client
        self._view = view
        self._claims = AsyncClaims(client)
        self._celery = producer(settings)
        self.backlog = Backlog(client, view)
        self._publishers = asyncio.Semaphore(PUBLISHERS)
        self.is_closing = False  #: what Redis does not take at once now, it never gets

    def queue_for(self, model: str, lane: Lane, share: int) -> str:
        """The share's queue in the lane of a worker group that serves the model; the group with the most ready
        workers. Where a worker of another version has fewer shares, several of ours wait in one queue."""
        queues = [_share_queue(worker, lane, share) for worker in self._view.ready(model)]
        if not queues:
            message = "The worker that served this model has just gone. Try again soon."
            raise QueueUnavailable(message, RETRY_WHEN_UNAVAILABLE_S)
        return max(sorted(set(queues)), key=queues.count)

    async def send(self, state: JobState, max_queue: int) -> None:
        """Open the claim, publish the message, then let the claim last until the state's deadline.

        The first lease is short: should the publish time out and yet arrive later, nobody can run it any more.
        Raises ServerBusy when `max_queue` requests (0: no bound) wait already, or QueueUnavailable.
        """
        await self._turn(state)
        try:
            try:
                await self._send(state, max_queue)
            finally:
                self._publishers.release()
        except _Refused as exc:  # its estimate takes a moment, in which others can be sent
            raise await self.busy(state.queue, str(exc)) from None

    async def send_ahead(self, state: JobState) -> None:
        """Put the message of a waiting batch request into the interactive lane as well, where it has the same claim.

        Raises QueueUnavailable; it may have arrived all the same.
        """
        parts = queue_parts(state.queue)
        assert parts is not None
        queue = queue_name(Lane.INTERACTIVE, parts.models, parts.share)
        async with self._publishers:
            try:
                async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                    await asyncio.to_thread(self._publish, state, queue)
            except BROKER_ERRORS as exc:
                raise self._not_queued(state, exc) from None

    async def _turn(self, state: JobState) -> None:
        """Wait for a publisher before the claim is opened: its first lease must not lapse in a crowd."""
        while True:
            try:
                async with asyncio.timeout(0.25):
                    await self._publishers.acquire()
                return
            except TimeoutError:
                if not self._view.is_reachable:
                    raise QueueUnavailable(UNAVAILABLE, RETRY_WHEN_UNAVAILABLE_S) from None
                if time.monotonic() > state.deadline:
                    message = "The server is busy: too many requests came at once."
                    raise await self.busy(state.queue, message) from None

    async def _send(self, state: JobState, max_queue: int) -> None:
        lease_ms = min(FIRST_LEASE_MS, _left_ms(state))
        if lease_ms <= 0:
            raise _Refused(TOO_LATE)
        try:
            work = work_of(state.request)
            submitted = await self._claims.submit(state.claim, state.queue, lease_ms, max_queue, work)
        except BROKER_ERRORS as exc:  # should it yet arrive, it opens a claim that has no message
            raise self._not_queued(state, exc) from None
        if not submitted.accepted:
            raise _Refused(f"The server is busy: {submitted.waiting} requests wait already, the most it lets wait.")
        # Redis may have been slow to take it: what is left now, counted from the time when it did, ends no later than
        # the deadline does
        ends_ms = submitted.now_ms + _left_ms(state)
        lease_ends = time.monotonic() + lease_ms / 1000
        state.waiting_before = submitted.waiting
        try:
            if ends_ms < submitted.now_ms + lease_ms:
                await self._claims.extend(state.claim, state.queue, ends_ms)
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await asyncio.to_thread(self._publish, state, state.queue)
            is_open = await self._claims.extend(state.claim, state.queue, ends_ms)
        except BROKER_ERRORS as exc:
            if not await self._was_taken(state, lease_ends):
                raise self._not_queued(state, exc) from None
        else:
            if not is_open and ends_ms <= submitted.now_ms + lease_ms:  # it has lapsed with the client's patience
                raise _Refused(TOO_LATE)
            if not is_open:
                message = "The queue (Redis) is too slow to take the request. Try again soon."
                raise QueueUnavailable(message, RETRY_WHEN_UNAVAILABLE_S)
            state.is_queued = True

    async def busy(self, queue: str, why: str) -> ServerBusy:
        """With how long a request that came now would wait; before that can be known the busy timeout stands for it."""
        estimate = await self.backlog.estimate_new(queue)
        wait_s = max(1.0, self._settings.busy_timeout_s if estimate is None else estimate.wait_s)
        return ServerBusy(f"{why} A request sent now would wait about {wait_s:.0f} s.", wait_s)

    async def _was_taken(self, state: JobState, lease_ends: float) -> bool:
        """After a failed publish: False once it can no longer run, at the latest when its first lease has ended."""
        while (left_s := lease_ends - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    return await self.withdraw(state) is not None
            except BROKER_ERRORS:
                await asyncio.sleep(min(0.05, max(0.0, lease_ends - time.monotonic())))
        return False

    def _not_queued(self, state: JobState, exc: Exception) -> QueueUnavailable:
        log.warning("request not queued: %s", type(exc).__name__, extra={"request_id": state.id})
        return QueueUnavailable(FULL if _is_out_of_memory(exc) else UNAVAILABLE, RETRY_WHEN_UNAVAILABLE_S)

    async def withdraw(self, state: JobState) -> Owner | None:
        """None: it has not run and never will. Else who took it. Raises RedisError, OSError."""
        return await self._claims.withdraw(state.claim, state.queue)

    async def holder(self, state: JobState) -> Owner | None:
        """Who took it; None while it waits or when it is unknown. Raises RedisError, OSError."""
        return (await self.holders([state]))[0]

    async def holders(self, states: Sequence[JobState]) -> list[Owner | None]:
        """Of each one. Raises RedisError, OSError."""
        values = await self._redis.mget([claim_key(state.claim) for state in states])
        return [None if value in (None, b"waiting") else owner_of(value.decode()) for value in values]

    async def cancel(self, state: JobState) -> None:
        """Whatever phase it is in: a waiting request never runs, a running one frees its slot."""
        if state.ended:
            await self._forget(state)
        else:
            state.ended = True
            await self.give_up(state)

    async def _forget(self, state: JobState) -> None:
        """Its end was heard, so nobody asks for its claim again; what is not deleted here lapses by itself."""
        with suppress(*BROKER_ERRORS):
            await self._redis.delete(claim_key(state.claim))

    async def give_up(self, state: JobState) -> None:
        """Withdraw it, or tell the worker that has it. Repeated while Redis does not answer: it may run meanwhile."""
        give_up_at = time.monotonic() + CANCEL_GIVE_UP_S
        while True:
            try:
                taken_by = await self.withdraw(state)
                if taken_by is None:
                    log.info("request withdrawn", extra={"request_id": state.id})
                else:
                    with suppress(redis.OutOfMemoryError):  # the control message is enough unless it gets lost
                        await self._redis.set(cancelled_key(state.id), b"1", ex=CANCELLED_TTL_S)
                    await self._control(taken_by.worker, Control(op="cancel", id=state.id))
                return
            except (redis.RedisError, OSError) as exc:
                if self.is_closing or time.monotonic() > give_up_at:
                    log.warning("cancel not sent: %s", type(exc).__name__, extra={"request_id": state.id})
                    return
            await asyncio.sleep(CANCEL_PAUSE_S)

    async def ask_for_missing(self, state: JobState) -> None:
        """Have the worker send its frames again, from the first one that is missing. Raises RedisError, OSError."""
        if state.ended:
            return
        state.heard_at = time.monotonic()
        owner = state.worker or await self.holder(state)  # `started` itself may be what is missing
        if owner is not None:
            await self._control(owner[0], Control(op="resend", id=state.id, from_seq=state.next_seq))
            state.asked_at = state.asked_at or time.monotonic()  # the question has reached Redis

    def warm_up(self) -> None:
        """In a thread. The first publish costs 80 ms and more: connect before it is wanted."""
        try:
            with self._celery.producer_pool.acquire(block=True) as warm:
                warm.connection.ensure_connection(max_retries=1, timeout=1.0)
        except BROKER_ERRORS as exc:
            log.warning("no connection to the broker yet: %s", type(exc).__name__)

    def close(self) -> None:
        self._celery.close()

    def _publish(self, state: JobState, queue: str) -> None:
        """In a thread: Celery's publish blocks for 1-2 ms."""
        task = CHAT_TASK if isinstance(state.request, GenerateRequest) else EMBED_TASK
        message = msgspec.to_builtins(msgspec.structs.replace(state.request, attempt=state.attempt))
        # `argsrepr` is what Celery's logs show; what a worker shows is its own (tasks/shown.py)
        options = {"task_id": state.id, "queue": queue, "argsrepr": state.request.model, "retry": False}
        self._celery.send_task(task, [message], ignore_result=True, **options)

    async def _control(self, worker: str, control: Control) -> None:
        await self._redis.publish(control_channel(worker), msgspec.msgpack.encode(control))


def _is_out_of_memory(exc: BaseException | None) -> bool:
    """kombu wraps the error; Redis 6 tells it of a script in the middle of the message."""
    if exc is None:
        return False
    is_said = isinstance(exc, redis.ResponseError) and "OOM" in str(exc)
    return is_said or isinstance(exc, redis.OutOfMemoryError) or _is_out_of_memory(exc.__cause__)


def _left_ms(state: JobState) -> int:
    """Until its deadline."""
    return int((state.deadline - time.monotonic()) * 1000)


def _share_queue(worker: WorkerState, lane: Lane, share: int) -> str:
    plain = worker.queues[lane.value]
    parts = queue_parts(plain)
    return plain if parts is None else queue_name(lane, parts.models, share % worker.shares)
