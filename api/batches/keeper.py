"""Keeper: the one task of an API process that looks after batches.

Every batch that has not ended is in the hands of one process, by a lease in Redis. A process takes what nobody has: new
batches at once, those of a process that died when its lease lapses. It validates them and hands them to the runner.
It also removes what has expired.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import redis

from api.batches.batch_store import BatchStore
from api.batches.cancelling import check_cancelled
from api.batches.errors import BatchMissing
from api.batches.file_store import FileStore
from api.batches.live import LiveBatches
from api.batches.records import BatchRecord, BatchStatus, RequestCounts, advanced
from api.batches.validation import Findings

log = logging.getLogger(__name__)

LEASE_S = 8.0
RENEW_S = 2.0
LOOK_S = 5.0  #: between two looks for batches that nobody has
LOOK_AGAIN_S = 1.0  #: the same while other processes have some
SWEEP_S = 600.0
RETRY_S = 10.0  #: after work on a batch has failed
REDIS_ERRORS = (redis.RedisError, OSError)


class BatchRunner(Protocol):
    """What executes batches."""

    async def run(self, batch: BatchRecord) -> None:
        """Bring a validated batch to its end: `in_progress`, `finalizing` or `cancelling`, from wherever it stands.

        Only this process has it, but another one may have begun it. It may be cancelled at any moment, when the lease
        is lost or the server stops; what it raises is logged, and it is called again later.
        """


#: see validation.Validator
Validate = Callable[[BatchRecord], Awaitable[Findings]]


class Keeper:
    """`start` and `stop` once each, on the event loop."""

    def __init__(
        self,
        api_id: str,
        files: FileStore,
        batches: BatchStore,
        live: LiveBatches,
        validate: Validate,
        runner: BatchRunner | None,
        ttl_s: float,
    ) -> None:
        """`ttl_s`: how long a batch is kept once it has ended. Without a runner a valid batch waits."""
        self._api_id = api_id
        self._files = files
        self._batches = batches
        self._live = live
        self._validate = validate
        self._runner = runner
        self._ttl_s = ttl_s
        self._mine: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._validating = asyncio.Lock()  #: one at a time leaves the processor to others

    async def start(self) -> None:
        self._watch = asyncio.create_task(self._run(), name="batch-keeper")

    async def stop(self) -> None:
        """Leave all batches to other processes, or to the next start."""
        tasks = [task for task in (self._watch, *self._mine.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """There is something new: look now."""
        self._wake.set()

    # -- looking -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        swept_s = float("-inf")
        while True:
            self._wake.clear()
            pause_s = LOOK_S
            try:
                if await self._take_free():
                    pause_s = LOOK_AGAIN_S
                if time.monotonic() - swept_s > SWEEP_S:
                    swept_s = time.monotonic()
                    await self.sweep()
            except REDIS_ERRORS as exc:
                log.debug("batches not looked at: %s", type(exc).__name__)
            except Exception:  # one bad record must not end the work on all others
                log.exception("batches not looked at")
            check_cancelled()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause_s)

    async def _take_free(self) -> bool:
        """Whether other processes have batches, which may die."""
        are_others = False
        for batch in await self._batches.unfinished():
            if batch.id in self._mine or not self._has_work(batch):
                continue
            if self._not_before.get(batch.id, 0.0) > time.monotonic():
                continue
            if await self._live.lease(batch.id, self._api_id, LEASE_S):
                task = asyncio.create_task(self._work(batch.id), name=f"batch-{batch.id}")
                self._mine[batch.id] = task
                task.add_done_callback(partial(self._done, batch.id))
            else:
                are_others = True
        return are_others

    def _has_work(self, batch: BatchRecord) -> bool:
        return self._runner is not None or _is_ours(batch)

    def _done(self, batch_id: str, _: object) -> None:
        self._mine.pop(batch_id, None)

    async def sweep(self) -> None:
        """Remove what has expired."""
        everything = await self._batches.all()
        unfinished = [batch for batch in everything if not batch.has_ended]
        in_use = {batch.input_file_id for batch in unfinished}
        removed = await self._files.sweep(in_use, {batch.id for batch in unfinished})
        old = [batch for batch in everything if batch.ended_at and batch.ended_at + self._ttl_s < time.time()]
        for batch in old:
            await self._batches.remove(batch.id)
        if removed or old:
            log.info("expired files and batches removed", extra={"files": removed, "batches": len(old)})

    # -- one batch ---------------------------------------------------------------------------------

    async def _work(self, batch_id: str) -> None:
        """To its end, as long as the lease is ours."""
        self._not_before.pop(batch_id, None)
        work = asyncio.ensure_future(self._advance(batch_id))
        renewing = asyncio.ensure_future(self._renew(batch_id))
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            renewing.cancel()
            results = await asyncio.gather(work, renewing, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception) and not isinstance(result, BatchMissing):
                    log.warning("work on a batch failed", exc_info=result, extra={"batch_id": batch_id})
                    self._not_before[batch_id] = time.monotonic() + RETRY_S
            with contextlib.suppress(*REDIS_ERRORS):
                await self._live.release(batch_id, self._api_id)

    async def _renew(self, batch_id: str) -> None:
        """Ends when another process has it. While Redis does not answer nobody else can take it either."""
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(*REDIS_ERRORS):
                if not await self._live.lease(batch_id, self._api_id, LEASE_S):
                    log.info("batch lost to another process", extra={"batch_id": batch_id})
                    return
            check_cancelled()

    async def _advance(self, batch_id: str) -> None:
        batch = await self._batches.get(batch_id)
        if batch.status is BatchStatus.VALIDATING:
            batch = await self._validated(batch)
        if batch.status is BatchStatus.CANCELLING and _is_ours(batch):
            batch = await self._batches.update(batch_id, _cancelled)
        if self._runner is not None and not batch.has_ended and not _is_ours(batch):
            await self._runner.run(batch)

    async def _validated(self, batch: BatchRecord) -> BatchRecord:
        """Raises what says that it must be tried again; when the batch's time is over by then, it expires."""
        if batch.expires_at <= time.time():
            return await self._batches.update(batch.id, _expired)
        async with self._validating:
            checked = await self._validate(batch)

        def change(current: BatchRecord) -> BatchRecord:
            if current.status is not BatchStatus.VALIDATING:  # cancelled meanwhile
                return current
            if checked.errors:
                return advanced(current, BatchStatus.FAILED, time.time(), errors=checked.errors)
            counts = RequestCounts(total=checked.total)
            return advanced(current, BatchStatus.IN_PROGRESS, time.time(), model=checked.model, counts=counts)

        batch = await self._batches.update(batch.id, change)
        log.info(
            "batch validated", extra={"batch_id": batch.id, "status": batch.status.value, "lines": batch.counts.total}
        )
        return batch


def _is_ours(batch: BatchRecord) -> bool:
    """The keeper itself brings it on: it never got as far as the runner."""
    return batch.status is BatchStatus.VALIDATING or (
        batch.status is BatchStatus.CANCELLING and batch.in_progress_at is None
    )


def _cancelled(batch: BatchRecord) -> BatchRecord:
    return batch if batch.has_ended else advanced(batch, BatchStatus.CANCELLED, time.time())


def _expired(batch: BatchRecord) -> BatchRecord:
    return advanced(batch, BatchStatus.EXPIRED, time.time()) if batch.status is BatchStatus.VALIDATING else batch
