import asyncio
import time
from pathlib import Path

import fakeredis
import msgspec
import pytest

from api.batches import batch_store, names
from api.batches.batch_store import BatchStore
from api.batches.errors import BatchMissing
from api.batches.live import LiveBatches, Progress
from api.batches.records import (
    CANCELLABLE,
    ENDS,
    NEXT,
    BatchRecord,
    BatchStatus,
    LineError,
    RequestCounts,
    TokenCounts,
    advanced,
)
from api.batches.storage import Storage
from tests.unit.batch_support import KINDS, batch_of, storage_of


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return storage_of(request.param, tmp_path)


@pytest.fixture
def store(storage: Storage) -> BatchStore:
    return BatchStore(storage)


@pytest.fixture
def live() -> LiveBatches:
    return LiveBatches(fakeredis.FakeAsyncRedis())


def counted(batch: BatchRecord) -> BatchRecord:
    counts = msgspec.structs.replace(batch.counts, completed=batch.counts.completed + 1)
    return msgspec.structs.replace(batch, counts=counts)


# -- versions ------------------------------------------------------------------------------------


async def test_a_batch_is_what_the_last_change_made_of_it_in_every_process(storage: Storage, store: BatchStore) -> None:
    batch = await store.create(
        batch_of(metadata={"a": "ä"}, errors=(LineError(code="c", message="m", line=3),), output_expires_after_s=3600)
    )
    other = BatchStore(storage)
    assert await other.get(batch.id) == batch
    changed = await store.update(batch.id, lambda b: advanced(b, BatchStatus.IN_PROGRESS, 1234.9, model="m"))
    assert (changed.version, changed.in_progress_at, changed.model) == (2, 1234, "m")
    assert await other.get(batch.id) == await store.get(batch.id) == changed


async def test_changes_of_two_processes_at_once_all_count(tmp_path: Path) -> None:
    storage = storage_of("local", tmp_path)
    stores = [BatchStore(storage) for _ in range(4)]
    batch = await stores[0].create(batch_of())
    await asyncio.gather(*(store.update(batch.id, counted) for store in stores for _ in range(10)))
    final = await BatchStore(storage).get(batch.id)
    assert (final.counts.completed, final.version) == (40, 41)
    assert len(storage.entries(names.batch_folder(batch.id))) <= batch_store.KEPT_VERSIONS + len(stores)


async def test_a_change_on_an_old_version_is_done_again_on_the_new_one(storage: Storage) -> None:
    slow, fast = BatchStore(storage), BatchStore(storage)
    batch = await slow.create(batch_of())
    seen: list[int] = []

    def change(before: BatchRecord) -> BatchRecord:
        if not seen:  # while this one thinks, another process makes many versions
            for _ in range(batch_store.KEPT_VERSIONS * 2):
                assert fast._write(
                    msgspec.structs.replace(counted(latest := _latest(fast, batch.id)), version=latest.version + 1)
                )
        seen.append(before.version)
        return counted(before)

    await slow.update(batch.id, change)
    assert (await fast.get(batch.id)).counts.completed == batch_store.KEPT_VERSIONS * 2 + 1
    assert len(seen) == 2


def _latest(store: BatchStore, batch_id: str) -> BatchRecord:
    batch = store._read(batch_id)
    assert batch is not None
    return batch


async def test_a_change_that_raises_or_changes_nothing_writes_nothing(store: BatchStore) -> None:
    batch = await store.create(batch_of())
    assert await store.update(batch.id, lambda before: before) == batch
    with pytest.raises(ValueError, match="cannot become completed"):
        await store.update(batch.id, lambda before: advanced(before, BatchStatus.COMPLETED, 0))
    assert (await store.get(batch.id)).version == 1


@pytest.mark.parametrize("batch_id", ["", "batch_1", "../x", "batch_" + "0" * 24, "x" * 5000])
async def test_an_id_that_is_none_is_not_there(store: BatchStore, batch_id: str) -> None:
    for ask in (store.get(batch_id), store.update(batch_id, counted)):
        with pytest.raises(BatchMissing):
            await ask


async def test_another_keys_batch_is_not_there(store: BatchStore) -> None:
    batch = await store.create(batch_of(key_name="me"))
    with pytest.raises(BatchMissing):
        await store.get(batch.id, "you")
    assert (await store.page("you", None, 10)).batches == []


async def test_pages_go_through_all_batches_the_newest_first(store: BatchStore) -> None:
    ids = [(await store.create(batch_of())).id for _ in range(5)]
    first = await store.page("", None, 2)
    second = await store.page("", first.batches[-1].id, 2)
    third = await store.page("", second.batches[-1].id, 2)
    pages = (first, second, third)
    assert [batch.id for page in pages for batch in page.batches] == sorted(ids, reverse=True)
    assert [page.has_more for page in pages] == [True, True, False]
    with pytest.raises(BatchMissing):
        await store.page("", "batch_nope", 2)


async def test_what_has_not_ended_is_found_again(storage: Storage, store: BatchStore) -> None:
    open_ids = [(await store.create(batch_of(status=status))).id for status in BatchStatus if status not in ENDS]
    for status in ENDS:
        await store.create(batch_of(status=status))
    assert [batch.id for batch in await BatchStore(storage).unfinished()] == sorted(open_ids)
    await store.remove(open_ids[0])
    assert [batch.id for batch in await store.unfinished()] == sorted(open_ids[1:])


def test_every_status_is_reached_with_its_time_and_ends_stay() -> None:
    for status, following in NEXT.items():
        for after in BatchStatus:
            batch = batch_of(status=status)
            if after in following:
                changed = advanced(batch, after, 99.0)
                assert getattr(changed, f"{after.value}_at") == 99
                assert changed.ended_at == (99 if after in ENDS else None)
            else:
                with pytest.raises(ValueError, match="cannot become"):
                    advanced(batch, after, 99.0)
    assert {BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS} == CANCELLABLE


# -- Redis ---------------------------------------------------------------------------------------


async def test_a_cancel_flag_stays_until_it_is_forgotten(live: LiveBatches) -> None:
    assert not await live.is_cancel_asked("b")
    await live.ask_to_cancel("b")
    assert await live.is_cancel_asked("b")
    await live.forget("b")
    assert not await live.is_cancel_asked("b")


async def test_progress_shows_while_a_batch_runs_and_never_goes_back(live: LiveBatches) -> None:
    behind = batch_of(status=BatchStatus.IN_PROGRESS, counts=RequestCounts(total=9, completed=2))
    ahead = batch_of(status=BatchStatus.IN_PROGRESS, counts=RequestCounts(total=9, completed=8))
    ended = batch_of(status=BatchStatus.COMPLETED, counts=RequestCounts(total=9, completed=9))
    quiet = batch_of(status=BatchStatus.IN_PROGRESS)
    progress = Progress(RequestCounts(total=9, completed=4, failed=1), TokenCounts(input=70))
    for batch in (behind, ahead, ended):
        await live.note_progress(batch.id, progress)
    found = await live.with_progress([behind, ahead, ended, quiet])
    assert found[0].counts == progress.counts
    assert found[0].tokens.input == 70
    assert found[1:] == [ahead, ended, quiet]
    assert await live.with_progress([]) == []


def test_ids_tell_their_time() -> None:
    for made in (names.new_file_id(), names.new_batch_id(), names.file_id_of(names.new_batch_id(), "output")):
        assert abs(names.made_at_s(made) - time.time()) < 5
