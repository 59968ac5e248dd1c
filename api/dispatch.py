"""Putting a request into the queue, and taking it out again."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

import msgspec
import redis
from kombu.exceptions import KombuError, OperationalError

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
    cancelled_key,
    claim_key,
    control_channel,
)
from tasks.settings import Settings

log = logging.getLogger(__name__)

UNAVAILABLE = "The queue (Redis) does not answer. Try again soon."
RETRY_WHEN_UNAVAILABLE_S = 2.0
BROKER_ERRORS = (redis.RedisError, OSError, OperationalError, KombuError)
PUBLISH_TIMEOUT_S = 1.2  #: its sockets give up after 1 s each, and kombu may use two
PUBLISHERS = 4  #: threads and connections that publish; more are not faster
CANCEL_PAUSE_S = 0.3
CANCEL_GIVE_UP_S = 60.0


class Dispatcher:
    """Claims and messages of one API process."""

    def __init__(self, settings: Settings, client: Any, view: WorkersView) -> None:
        self._settings = settings
        self._redis = client
        self._view = view
        self._claims = AsyncClaims(client)
        self._celery = producer(settings)
        self._publishers = asyncio.Semaphore(PUBLISHERS)
        self.is_closing = False  #: what Redis does not take at once now, it never gets

    def queue_for(self, model: str, lane: Lane) -> str:
        """The lane's queue of a worker group that serves the model; the group with the most ready workers."""
        queues = [worker.queues[lane.value] for worker in self._view.ready(model)]
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
            await self._send(state, max_queue)
        finally:
            self._publishers.release()

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
                    raise ServerBusy(message, self.estimate_s(state.queue, 0)) from None

    async def _send(self, state: JobState, max_queue: int) -> None:
        wait_ms = max(1, int((state.deadline - time.monotonic()) * 1000))
        lease_ms = min(FIRST_LEASE_MS, wait_ms)
        try:
            submitted = await self._claims.submit(state.claim, state.queue, lease_ms, max_queue)
        except BROKER_ERRORS as exc:  # should it yet arrive, it opens a claim that has no message
            raise self._not_queued(state, exc) from None
        if not submitted.accepted:
            message = f"The server is busy: {submitted.waiting} requests wait already, the most it lets wait."
            raise ServerBusy(message, self.estimate_s(state.queue, submitted.waiting))
        lease_ends = time.monotonic() + lease_ms / 1000
        state.waiting_before = submitted.waiting
        try:
            await asyncio.wait_for(asyncio.to_thread(self._publish, state), PUBLISH_TIMEOUT_S)
            is_open = await self._claims.extend(state.claim, state.queue, submitted.now_ms + wait_ms)
        except BROKER_ERRORS as exc:
            if not await self._was_taken(state, lease_ends):
                raise self._not_queued(state, exc) from None
        else:
            if not is_open:
                message = "The queue (Redis) is too slow to take the request. Try again soon."
                raise QueueUnavailable(message, RETRY_WHEN_UNAVAILABLE_S)

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
        return QueueUnavailable(UNAVAILABLE, RETRY_WHEN_UNAVAILABLE_S)

    async def withdraw(self, state: JobState) -> Owner | None:
        """None: it has not run and never will. Else who took it. Raises RedisError, OSError."""
        return await self._claims.withdraw(state.claim, state.queue)

    async def holder(self, state: JobState) -> Owner | None:
        """Who took it; None while it waits or when it is unknown. Raises RedisError, OSError."""
        value = await self._redis.get(claim_key(state.claim))
        return None if value is None or value == b"waiting" else owner_of(value.decode())

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
                if taken_by is not None:
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

    def estimate_s(self, queue: str, waiting: int) -> float:
        """How long a request behind `waiting` others would wait: them and the running ones times the measured mean,
        over the slots. Before anything was measured the busy timeout stands for the mean."""
        workers = [worker for worker in self._view.workers() if queue in worker.queues.values()]
        slots = sum(worker.slots for worker in workers) or 1
        means = [worker.mean_run_s for worker in workers if worker.mean_run_s]
        mean_s = sum(means) / len(means) if means else self._settings.busy_timeout_s
        return max(1.0, mean_s * (waiting + 1) / slots)

    def warm_up(self) -> None:
        """In a thread. The first publish costs 80 ms and more: connect before it is wanted."""
        try:
            with self._celery.producer_pool.acquire(block=True) as warm:
                warm.connection.ensure_connection(max_retries=1, timeout=1.0)
        except BROKER_ERRORS as exc:
            log.warning("no connection to the broker yet: %s", type(exc).__name__)

    def close(self) -> None:
        self._celery.close()

    def _publish(self, state: JobState) -> None:
        """In a thread: Celery's publish blocks for 1-2 ms."""
        task = CHAT_TASK if isinstance(state.request, GenerateRequest) else EMBED_TASK
        message = msgspec.to_builtins(msgspec.structs.replace(state.request, attempt=state.attempt))
        # `argsrepr` is what Flower and logs show: no prompt in it
        shown = f"('{state.request.model}',)"
        self._celery.send_task(task, [message], task_id=state.id, queue=state.queue, argsrepr=shown, retry=False)

    async def _control(self, worker: str, control: Control) -> None:
        await self._redis.publish(control_channel(worker), msgspec.msgpack.encode(control))
