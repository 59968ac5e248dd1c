"""Putting a request into the queue, and taking it out again."""

import asyncio
import logging
from typing import Any

import msgspec
import redis
from kombu.exceptions import KombuError, OperationalError

from api.job import JobState
from api.job_types import QueueUnavailable, ServerBusy
from api.workers_view import WorkersView
from tasks.celery import producer
from tasks.claims import FIRST_LEASE_MS, AsyncClaims
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


class Dispatcher:
    """Claims and messages of one API process."""

    def __init__(self, settings: Settings, client: Any, view: WorkersView) -> None:
        self._settings = settings
        self._redis = client
        self._view = view
        self._claims = AsyncClaims(client)
        self._celery = producer(settings)

    def queue_for(self, model: str, lane: Lane) -> str:
        """The lane's queue of a worker group that serves the model; the group with the most ready workers."""
        queues = [worker.queues[lane.value] for worker in self._view.ready(model)]
        if not queues:
            message = "The worker that served this model has just gone. Try again soon."
            raise QueueUnavailable(message, RETRY_WHEN_UNAVAILABLE_S)
        return max(sorted(set(queues)), key=queues.count)

    async def send(self, state: JobState, wait_s: float, max_queue: int) -> None:
        """Open the claim, publish the message, then let the claim last as long as the client waits.

        The first lease is short: should the publish time out and yet arrive later, nobody can run it any more.
        Raises ServerBusy when `max_queue` requests (0: no bound) wait already, or QueueUnavailable.
        """
        try:
            wait_ms = int(wait_s * 1000)
            submitted = await self._claims.submit(state.id, state.queue, min(FIRST_LEASE_MS, wait_ms), max_queue)
            if not submitted.accepted:
                message = f"The server is busy: {submitted.waiting} requests wait already, the most it lets wait."
                raise ServerBusy(message, self.estimate_s(state.queue, submitted.waiting))
            state.waiting_before = submitted.waiting
            await asyncio.to_thread(self._publish, state)
            if await self._claims.extend(state.id, state.queue, submitted.now_ms + wait_ms) is None:
                message = "The queue (Redis) is too slow to take the request. Try again soon."
                raise QueueUnavailable(message, RETRY_WHEN_UNAVAILABLE_S)
        except BROKER_ERRORS as exc:
            log.warning("request not queued: %s", type(exc).__name__, extra={"request_id": state.id})
            raise QueueUnavailable(UNAVAILABLE, RETRY_WHEN_UNAVAILABLE_S) from None

    async def withdraw(self, state: JobState) -> str | None:
        """None: it has not run and never will. Else who took it (`worker#boot`). Raises RedisError, OSError."""
        return await self._claims.withdraw(state.id, state.queue)

    async def holder(self, state: JobState) -> str | None:
        """Who took it (`worker#boot`); None while it waits or when it is unknown. Raises RedisError, OSError."""
        value = await self._redis.get(claim_key(state.id))
        return None if value is None or value == b"waiting" else value.decode()

    async def cancel(self, state: JobState) -> None:
        """Whatever phase it is in: a waiting request never runs, a running one frees its slot."""
        if state.ended:
            return
        state.ended = True
        try:
            taken_by = await self.withdraw(state)
            if taken_by is not None:
                await self._redis.set(cancelled_key(state.id), b"1", ex=CANCELLED_TTL_S)
                await self._control(taken_by.partition("#")[0], Control(op="cancel", id=state.id))
        except (redis.RedisError, OSError) as exc:
            log.warning("cancel not sent: %s", type(exc).__name__, extra={"request_id": state.id})

    async def ask_for_missing(self, state: JobState) -> None:
        """Have the worker send its frames again, from the first one that is missing."""
        if state.worker is not None and not state.ended:
            await self._control(state.worker[0], Control(op="resend", id=state.id, from_seq=state.next_seq))

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
