"""Who works on a batch: leases on a real broker, and keepers that take over from each other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from api.batches import keeper
from api.batches.batch_store import BatchStore
from api.batches.file_store import FileStore
from api.batches.keeper import BatchRunner, Keeper
from api.batches.live import LiveBatches, Progress
from api.batches.records import BatchRecord, BatchStatus, advanced
from api.batches.storage import Storage
from api.batches.validation import Validator
from api.job_types import ModelLoading
from tasks.contracts import ModelInfo
from tests.stack import Stack
from tests.unit.batch_support import batch_of, line, put
from tests.unit.fake_jobs import EMBED, FakeJobs
from tests.unit.routes_support import settings

TTL_S = 1000.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEASE_S", 0.6), ("RENEW_S", 0.2), ("LOOK_S", 0.1), ("RETRY_S", 0.1)):
        monkeypatch.setattr(keeper, name, value)


@pytest.fixture
async def client(broker: Stack) -> AsyncIterator[Any]:
    connection = redis.asyncio.Redis.from_url(broker.lis_env["LIS_REDIS_URL"])
    yield connection
    await connection.aclose()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not await condition():  # noqa: ASYNC110 - what others do has no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within 20 s: {what}") from None


class Runner:
    """Holds a batch until it is let go, then completes it."""

    def __init__(self, store: BatchStore) -> None:
        self.store = store
        self.running: list[str] = []
        self.may_end = asyncio.Event()
        self.failures = 0

    async def is_running(self) -> bool:
        return bool(self.running)

    async def is_idle(self) -> bool:
        return not self.running

    async def run(self, batch: BatchRecord) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("not now")
        self.running.append(batch.id)
        try:
            await self.may_end.wait()
            if batch.status is BatchStatus.IN_PROGRESS:
                batch = await self.store.update(batch.id, lambda b: advanced(b, BatchStatus.FINALIZING, 1))
            ending = BatchStatus.CANCELLED if batch.status is BatchStatus.CANCELLING else BatchStatus.COMPLETED
            await self.store.update(batch.id, lambda b: advanced(b, ending, 2))
        finally:
            self.running.remove(batch.id)


class Process:
    """What one API process has of batches."""

    def __init__(self, name: str, folder: Path, client: Any, has_runner: bool = True) -> None:
        self.jobs = FakeJobs()
        storage = Storage(str(folder))
        self.files = FileStore(storage, TTL_S)
        self.store = BatchStore(storage)
        self.live = LiveBatches(client)
        self.runner = Runner(self.store)
        validator = Validator(settings(), self.jobs, self.files)
        runner: BatchRunner | None = self.runner if has_runner else None
        self.keeper = Keeper(name, self.files, self.store, self.live, validator.validate, runner, TTL_S)

    async def batch(self, data: bytes = line("a") + line("b")) -> str:
        record = await put(self.files, data)
        batch = await self.store.create(batch_of(record.id))
        self.keeper.wake()
        return batch.id

    async def has_become(self, batch_id: str, status: BatchStatus) -> BatchRecord:
        async def has_it() -> bool:
            return (await self.store.get(batch_id)).status is status

        await until(has_it, f"the batch is {status}")
        return await self.store.get(batch_id)


async def test_a_lease_is_one_processs_until_it_lapses_or_is_left(client: Any) -> None:
    live = LiveBatches(client)
    assert await live.lease("b", "one", 60)
    assert await live.lease("b", "one", 60)
    assert not await live.lease("b", "two", 60)
    await live.release("b", "two")
    assert not await live.lease("b", "two", 60)
    await live.release("b", "one")
    assert await live.lease("b", "two", 0.05)
    await until(lambda: live.lease("b", "one", 60), "it has lapsed")
    await live.note_progress("b", Progress())
    await live.ask_to_cancel("b")
    for key in await client.keys("lis:batch:*"):
        assert await client.ttl(key) > 0
    await live.forget("b")
    assert await client.keys("lis:batch:b:*") == []


async def test_a_good_batch_is_validated_and_run_by_one_process(tmp_path: Path, client: Any) -> None:
    processes = [Process(name, tmp_path, client) for name in ("one", "two", "three")]
    for process in processes:
        await process.keeper.start()
    try:
        batch_id = await processes[0].batch()
        running = await processes[1].has_become(batch_id, BatchStatus.IN_PROGRESS)
        assert (running.model, running.counts.total) == (EMBED, 2)
        asked = 0

        async def have_asked_often() -> bool:  # for several leases nobody else gets it
            nonlocal asked
            asked += not await processes[0].live.lease(batch_id, "somebody", 0.1)
            return asked > 80

        await until(have_asked_often, "it has been asked for")
        assert sum(len(process.runner.running) for process in processes) == 1
        for process in processes:
            process.runner.may_end.set()
        await processes[2].has_become(batch_id, BatchStatus.COMPLETED)
    finally:
        for process in processes:
            await process.keeper.stop()


async def test_a_bad_file_fails_and_never_reaches_the_runner(tmp_path: Path, client: Any) -> None:
    process = Process("one", tmp_path, client)
    await process.keeper.start()
    try:
        batch_id = await process.batch(line("a") + b"nonsense\n")
        failed = await process.has_become(batch_id, BatchStatus.FAILED)
        assert [(error.line, error.code) for error in failed.errors] == [(2, "invalid_json_line")]
        assert process.runner.running == []
    finally:
        await process.keeper.stop()


async def test_what_a_dead_process_had_is_taken_over(tmp_path: Path, client: Any) -> None:
    dead, heir = Process("dead", tmp_path, client), Process("heir", tmp_path, client)
    batch_id = await dead.batch()
    assert await dead.live.lease(batch_id, "dead", 0.6)  # and it is never heard of again
    await heir.keeper.start()
    try:
        await until(heir.runner.is_running, "the other process has it")
    finally:
        await heir.keeper.stop()
    assert heir.runner.running == []
    assert await dead.live.lease(batch_id, "dead", 60)  # who stops in order leaves it at once


async def test_a_process_that_has_lost_its_lease_stops_working(tmp_path: Path, client: Any) -> None:
    process = Process("one", tmp_path, client)
    await process.keeper.start()
    try:
        batch_id = await process.batch()
        await until(process.runner.is_running, "it runs")
        await client.set(f"lis:batch:{batch_id}:lease", "another", ex=60)
        await until(process.runner.is_idle, "it has stopped")
        assert await client.get(f"lis:batch:{batch_id}:lease") == b"another"
    finally:
        await process.keeper.stop()


async def test_a_runner_that_fails_is_called_again(tmp_path: Path, client: Any) -> None:
    process = Process("one", tmp_path, client)
    process.runner.failures = 2
    process.runner.may_end.set()
    await process.keeper.start()
    try:
        await process.has_become(await process.batch(), BatchStatus.COMPLETED)
        assert process.runner.failures == 0
    finally:
        await process.keeper.stop()


async def test_validation_waits_for_a_worker(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process("one", tmp_path, client)
    asked: list[str] = []
    serves = process.jobs.require

    def require(model: str, kind: str) -> ModelInfo:
        asked.append(model)
        if len(asked) < 3:
            raise ModelLoading("loading")
        return serves(model, kind)

    monkeypatch.setattr(process.jobs, "require", require)
    await process.keeper.start()
    try:
        await process.has_become(await process.batch(), BatchStatus.IN_PROGRESS)
        assert len(asked) == 3
    finally:
        await process.keeper.stop()


@pytest.mark.parametrize("has_runner", [True, False])
async def test_a_batch_cancelled_before_it_was_validated_ends_without_the_runner(
    tmp_path: Path, client: Any, has_runner: bool
) -> None:
    process = Process("one", tmp_path, client, has_runner)
    batch_id = await process.batch()
    await process.store.update(batch_id, lambda b: advanced(b, BatchStatus.CANCELLING, 5))
    await process.keeper.start()
    try:
        ended = await process.has_become(batch_id, BatchStatus.CANCELLED)
        assert (ended.cancelling_at, ended.in_progress_at) == (5, None)
    finally:
        await process.keeper.stop()


async def test_without_a_runner_a_batch_waits_and_nobody_holds_it(tmp_path: Path, client: Any) -> None:
    process = Process("one", tmp_path, client, has_runner=False)
    await process.keeper.start()
    try:
        batch_id = await process.batch()
        await process.has_become(batch_id, BatchStatus.IN_PROGRESS)

        async def is_free() -> bool:
            return not await client.exists(f"lis:batch:{batch_id}:lease")

        await until(is_free, "nobody holds it")
    finally:
        await process.keeper.stop()


async def test_a_sweep_removes_finished_batches_after_their_time_and_nothing_that_runs(
    tmp_path: Path, client: Any
) -> None:
    process = Process("one", tmp_path, client, has_runner=False)
    running, old, young = [await process.batch() for _ in range(3)]
    await process.files.write_part(running, "p", b"x")
    await process.files.write_part(old, "p", b"x")
    await process.store.update(old, lambda b: advanced(b, BatchStatus.FAILED, 5))
    young_batch = await process.store.update(young, lambda b: advanced(b, BatchStatus.FAILED, b.created_at))
    await process.keeper.sweep()
    assert {batch.id for batch in await process.store.all()} == {running, young_batch.id}
    assert len(await process.files.list_parts(running)) == 1
    assert await process.files.list_parts(old) == []
