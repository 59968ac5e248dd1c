"""A batch from its first window to its output files."""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from enum import Enum
from functools import partial
from typing import Protocol

from api.batches.batch_store import BatchStore
from api.batches.cancelling import check_cancelled
from api.batches.errors import FileMissing, StorageFull
from api.batches.file_store import FileStore
from api.batches.keeper import REDIS_ERRORS
from api.batches.live import LiveBatches, Progress
from api.batches.records import BatchRecord, BatchStatus, LineError, RequestCounts, TokenCounts, advanced
from api.batches.runner.answer_lines import unanswered_line
from api.batches.runner.embeddings import EmbeddingLines
from api.batches.runner.generations import GenerationLines
from api.batches.runner.lane import BatchLane
from api.batches.runner.packing import Pace
from api.batches.runner.parts import Parts, Results, WindowRecord
from api.batches.runner.windows import Answered, Window, WindowSizes, add_tokens, read_window
from api.protocol.batch_lines import EMBEDDINGS, body_parser
from tasks.settings import Settings

log = logging.getLogger(__name__)

AT_ONCE = 2  #: batches of one API key that run at a time; the others wait, in memory with nothing but their records
TELL_S = 1.0  #: between two notes of the progress
LOOK_S = 0.4  #: between two looks whether it is to stop
LOOK_AT_RECORD_S = 5.0
STORAGE_PAUSE_S = 5.0


class Stop(Enum):
    """Why a batch ends before all of its lines have been run: code and message of the lines that were not."""

    CANCELLED = ("batch_cancelled", "The batch was cancelled before this request was executed.")
    EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")


#: where the end leads to
ENDS = {
    BatchStatus.FINALIZING: BatchStatus.COMPLETED,
    BatchStatus.CANCELLING: BatchStatus.CANCELLED,
    BatchStatus.IN_PROGRESS: BatchStatus.EXPIRED,
}


class Lines(Protocol):
    """Executes lines of one endpoint."""

    sizes: WindowSizes

    async def execute(self, window: Window) -> None: ...


class Runner:
    """See keeper.BatchRunner. One per API process."""

    def __init__(
        self, settings: Settings, files: FileStore, batches: BatchStore, live: LiveBatches, lane: BatchLane
    ) -> None:
        self.settings = settings
        self.files = files
        self.batches = batches
        self.live = live
        self.lane = lane
        self._paces: defaultdict[str, Pace] = defaultdict(lambda: Pace(settings.batch_slice_tokens))
        self._rooms: defaultdict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))

    async def run(self, batch: BatchRecord) -> None:
        try:
            await BatchRun(self, batch).to_end()
        except FileMissing as exc:
            error = LineError(code="file_not_found", message=str(exc), param="input_file_id")
            await self.batches.update(batch.id, partial(_failed, error=error))

    def lines_of(self, batch: BatchRecord) -> Lines:
        if batch.endpoint == EMBEDDINGS:
            return EmbeddingLines(batch, self.lane, self._paces[batch.model], self.settings.embedding_mrl)
        return GenerationLines(batch, self.lane)

    def room(self, batch: BatchRecord) -> asyncio.Semaphore:
        return self._rooms[batch.share]


class BatchRun:
    """One batch in the hands of this process."""

    def __init__(self, runner: Runner, batch: BatchRecord) -> None:
        settings = runner.settings
        self._runner = runner
        self._batch = batch
        self._lines = runner.lines_of(batch)
        self._parts = Parts(runner.files, batch)
        self._parse = body_parser(batch.endpoint, max_inputs=settings.embedding_max_inputs, max_n=settings.max_n)
        self._done: dict[int, WindowRecord] = {}
        self._open: dict[int, Window] = {}

    async def to_end(self) -> None:
        self._done = await self._parts.load()
        if self._batch.status is not BatchStatus.FINALIZING:
            log.info("batch runs", extra={"batch_id": self._batch.id, "windows_done": len(self._done)})
            stop = await self._work()
            if stop is not None:
                await self._give_up(stop)
            else:
                self._batch = await self._runner.batches.update(self._batch.id, _finalizing)
        await self._finish()

    # -- the lines ---------------------------------------------------------------------------------

    async def _work(self) -> Stop | None:
        """Run the lines, unless there is a reason to stop."""
        if self._batch.status is BatchStatus.CANCELLING:
            return Stop.CANCELLED
        lines = asyncio.ensure_future(self._run_lines())
        stopped = asyncio.ensure_future(self._until_stopped())
        telling = asyncio.ensure_future(self._tell_progress())
        tasks = (lines, stopped, telling)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not lines.cancelled():
            _raise_first(lines.exception())
            return None
        return stopped.result() if not stopped.cancelled() else telling.result()

    async def _run_lines(self) -> None:
        room = asyncio.Semaphore(self._lines.sizes.open)
        async with self._runner.room(self._batch), asyncio.TaskGroup() as group:
            await room.acquire()
            async for window in self._windows():
                self._open[window.index] = window
                group.create_task(self._run_window(window, room))
                await room.acquire()

    async def _run_window(self, window: Window, room: asyncio.Semaphore) -> None:
        await self._lines.execute(window)
        await self._commit(window)
        room.release()

    async def _windows(self) -> AsyncIterator[Window]:
        """Those that are not done, in order."""
        index, offset, number = 0, 0, 1
        while True:
            record = self._done.get(index)
            if record is not None:
                offset, number = record.end, record.next_number
            else:
                window = self._open.get(index) or await self._read(index, offset, number)
                if window is None:
                    return
                offset, number = window.end, window.next_number
                yield window
            index += 1

    async def _read(self, index: int, offset: int, number: int) -> Window | None:
        files, max_bytes = self._runner.files, self._runner.settings.max_body_bytes
        return await read_window(files, self._batch, self._parse, self._lines.sizes, max_bytes, index, offset, number)

    async def _commit(self, window: Window) -> None:
        """A full storage is waited for: what is done is not thrown away."""
        is_told = False
        while True:
            try:
                self._done[window.index] = await self._parts.commit(window)
            except StorageFull as exc:
                if not is_told:
                    log.error("a batch waits: %s", exc, extra={"batch_id": self._batch.id})
                is_told = True
                await asyncio.sleep(STORAGE_PAUSE_S)
            else:
                self._open.pop(window.index, None)
                return

    async def _give_up(self, stop: Stop) -> None:
        """Every line that has no answer gets `stop` for one."""
        code, message = stop.value
        async for window in self._windows():
            for place, line in enumerate(window.lines):
                encode = partial(unanswered_line, self._batch.id, line, code, message)
                window.answer(place, Answered(True, encode))
            await self._commit(window)

    # -- beside it ---------------------------------------------------------------------------------

    async def _until_stopped(self) -> Stop:
        looked_s = time.monotonic()
        while time.time() < self._batch.expires_at:
            with contextlib.suppress(*REDIS_ERRORS):
                if await self._runner.live.is_cancel_asked(self._batch.id):
                    return Stop.CANCELLED
            if time.monotonic() - looked_s > LOOK_AT_RECORD_S:
                looked_s = time.monotonic()
                now = await self._runner.batches.get(self._batch.id)
                if now.status is BatchStatus.CANCELLING:
                    return Stop.CANCELLED
            check_cancelled()
            await asyncio.sleep(LOOK_S)
        return Stop.EXPIRED

    async def _tell_progress(self) -> None:
        told: Progress | None = None
        while True:
            counts, tokens = self._totals()
            progress = Progress(counts, tokens)
            if progress != told:
                with contextlib.suppress(*REDIS_ERRORS):
                    await self._runner.live.note_progress(self._batch.id, progress)
            told = progress
            check_cancelled()
            await asyncio.sleep(TELL_S)

    def _totals(self) -> tuple[RequestCounts, TokenCounts]:
        completed = failed = 0
        tokens = TokenCounts()
        parts: list[WindowRecord | Window] = [*self._done.values(), *self._open.values()]
        for part in parts:
            completed += part.completed
            failed += part.failed
            tokens = add_tokens(tokens, part.tokens)
        return RequestCounts(total=self._batch.counts.total, completed=completed, failed=failed), tokens

    # -- the end -----------------------------------------------------------------------------------

    async def _finish(self) -> None:
        counts, tokens = self._totals()
        if counts.completed + counts.failed != counts.total:
            log.error("a batch's answers are not as many as its lines", extra={"batch_id": self._batch.id})
        results = await self._parts.assemble(self._done)

        def change(batch: BatchRecord) -> BatchRecord:
            return _ended(batch, counts, tokens, results)

        batch = await self._runner.batches.update(self._batch.id, change)
        log.info(
            "batch ended",
            extra={
                "batch_id": batch.id,
                "status": batch.status.value,
                "completed": counts.completed,
                "failed": counts.failed,
            },
        )
        await self._parts.remove()


def _finalizing(batch: BatchRecord) -> BatchRecord:
    """Unless it is being cancelled: then it ends as cancelled, with all that it has."""
    if batch.status is not BatchStatus.IN_PROGRESS:
        return batch
    return advanced(batch, BatchStatus.FINALIZING, time.time())


def _ended(batch: BatchRecord, counts: RequestCounts, tokens: TokenCounts, results: Results) -> BatchRecord:
    if batch.has_ended:
        return batch
    return advanced(
        batch,
        ENDS[batch.status],
        time.time(),
        counts=counts,
        tokens=tokens,
        output_file_id=results.output.id if results.output else None,
        error_file_id=results.error.id if results.error else None,
    )


def _failed(batch: BatchRecord, error: LineError) -> BatchRecord:
    return batch if batch.has_ended else advanced(batch, BatchStatus.FAILED, time.time(), errors=(error,))


def _raise_first(exc: BaseException | None) -> None:
    """The first of those that a TaskGroup has gathered."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if exc is not None:
        raise exc
