import asyncio
import errno
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from api.batches import file_store, names
from api.batches.errors import FileMissing, FileTooLarge, StorageFull
from api.batches.file_store import FileStore
from api.batches.storage import TMP, Storage, UnusableStorage
from api.batches.usage import with_room
from tests.unit.batch_support import KINDS, batch_of, put, storage_of

WEEK_S = 604_800


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return storage_of(request.param, tmp_path)


@pytest.fixture
def files(storage: Storage) -> FileStore:
    return FileStore(storage, WEEK_S)


async def content(files: FileStore, file_id: str) -> bytes:
    return b"".join([block async for block in files.content(file_id)])


# -- files ---------------------------------------------------------------------------------------


async def test_what_was_put_comes_back_in_another_process_too(storage: Storage, files: FileStore) -> None:
    data = bytes(range(256)) * 20_000
    async with aclosing(await files.begin()) as upload:
        for at in range(0, len(data), 70_000):
            await upload.write(data[at : at + 70_000])
        record = await upload.commit("name.jsonl", "batch", "me")
    other = FileStore(storage, WEEK_S)
    assert await other.get(record.id, "me") == record
    assert await content(other, record.id) == data
    assert (record.bytes, record.expires_at - record.created_at) == (len(data), WEEK_S)


async def test_an_upload_that_is_not_committed_leaves_nothing(storage: Storage, files: FileStore) -> None:
    async with aclosing(await files.begin()) as upload:
        await upload.write(b"x" * 3_000_000)
    assert storage.used_bytes() == 0


async def test_a_file_has_no_name_before_it_is_whole(storage: Storage, files: FileStore) -> None:
    async with aclosing(await files.begin()) as upload:
        await upload.write(b"x" * 3_000_000)
        assert storage.entries(names.FILES) == []
        await upload.commit("a", "batch", "")
    assert len(storage.entries(names.FILES)) == 2
    assert storage.entries(TMP) == []


async def test_another_keys_file_is_not_there(files: FileStore) -> None:
    record = await put(files, b"x", key="me")
    for ask in (files.get(record.id, "you"), files.delete(record.id, "you")):
        with pytest.raises(FileMissing):
            await ask
    assert (await files.page("you", None, None, 10, True)).files == []
    assert await files.get(record.id) == record


@pytest.mark.parametrize("file_id", ["", "file-1", "../secret", "file-" + "0" * 24, "file-" + "g" * 24, "x" * 5000])
async def test_an_id_that_is_none_is_not_there(files: FileStore, file_id: str) -> None:
    with pytest.raises(FileMissing):
        await files.get(file_id)
    with pytest.raises(FileMissing):
        await content(files, file_id)


async def test_a_deleted_file_is_gone_with_its_content(storage: Storage, files: FileStore) -> None:
    record = await put(files, b"x" * 1000)
    await files.delete(record.id)
    with pytest.raises(FileMissing):
        await files.get(record.id)
    assert (await files.page("", None, None, 10, True)).files == []
    assert storage.used_bytes() == 0


async def test_pages_go_through_all_files_in_order(files: FileStore) -> None:
    ids = [(await put(files, b"x", key="me")).id for _ in range(5)]
    await put(files, b"x", key="me", purpose="batch_output")
    for is_descending in (True, False):
        expected = sorted(ids, reverse=is_descending)
        seen: list[str] = []
        has_more = True
        while has_more:
            page = await files.page("me", "batch", seen[-1] if seen else None, 2, is_descending)
            seen += [record.id for record in page.files]
            has_more = page.has_more
        assert seen == expected
    assert len((await files.page("me", None, None, 100, True)).files) == 6
    with pytest.raises(FileMissing):
        await files.page("me", None, "file-nope", 2, True)


# -- bounds --------------------------------------------------------------------------------------


async def test_a_file_may_be_as_large_as_the_limit_and_no_larger(storage: Storage) -> None:
    files = FileStore(storage, WEEK_S, max_file_bytes=1000)
    assert (await put(files, b"x" * 1000)).bytes == 1000
    with pytest.raises(FileTooLarge, match="1000"):
        await put(files, b"x" * 1001)


async def test_all_files_together_are_bounded_and_what_is_deleted_makes_room(storage: Storage) -> None:
    files = FileStore(storage, WEEK_S, max_bytes=10_000)
    first = await put(files, b"x" * 6000)
    with pytest.raises(StorageFull, match="LIS_FILES_MAX_BYTES is 10000"):
        await put(files, b"x" * 5000)
    with pytest.raises(StorageFull):
        await files.write_part(batch_of().id, "p", b"x" * 5000)
    await files.delete(first.id)
    assert (await put(files, b"x" * 5000)).bytes == 5000


async def test_what_other_processes_wrote_counts(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.batches.usage.MEASURE_S", 0.0)
    await put(FileStore(storage, WEEK_S), b"x" * 9000)
    with pytest.raises(StorageFull):
        await put(FileStore(storage, WEEK_S, max_bytes=10_000), b"x" * 2000)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_full_storage(number: int) -> None:
    def write() -> None:
        raise OSError(number, "full")

    with pytest.raises(StorageFull):
        with_room(write)


# -- lines and parts -----------------------------------------------------------------------------


async def test_lines_are_read_in_windows_that_follow_each_other(files: FileStore) -> None:
    record = await put(files, b"".join(b"%d\n" % number for number in range(1000)))
    offset, number, seen = 0, 1, []
    while window := await files.read_lines(record.id, offset, number, max_lines=64, max_bytes=100, max_line_bytes=1000):
        assert sum(line.end - line.offset for line in window) <= 100
        seen += window
        offset, number = window[-1].end, window[-1].number + 1
    assert [(line.number, line.data) for line in seen] == [(index + 1, b"%d" % index) for index in range(1000)]


async def test_parts_become_one_file_in_the_order_given_and_done_twice_it_is_the_same(
    storage: Storage, files: FileStore
) -> None:
    batch = batch_of()
    for name, data in (("b", b"two"), ("a", b"one"), ("c", b"three"), ("b", b"TWO")):
        await files.write_part(batch.id, name, data)
    assert [(part.name, part.bytes) for part in await files.list_parts(batch.id)] == [("a", 3), ("b", 3), ("c", 5)]
    one = await files.assemble(batch.id, ["a", "b", "c"], "output", filename="o.jsonl", key_name="me")
    assert await content(files, one.id) == b"oneTWOthree"
    again = await FileStore(storage, WEEK_S).assemble(
        batch.id, ["a", "b", "c"], "output", filename="o.jsonl", key_name="me"
    )
    assert again == one
    assert one.purpose == "batch_output"
    error = await files.assemble(batch.id, ["c"], "error", filename="e.jsonl", key_name="me", expires_after_s=3600)
    assert error.id != one.id
    assert error.expires_at - error.created_at == 3600
    await files.remove_parts(batch.id)
    assert await files.list_parts(batch.id) == []
    await files.remove_parts(batch.id)


# -- expiry --------------------------------------------------------------------------------------


async def test_an_expired_file_is_not_there_and_a_sweep_removes_it_unless_a_batch_reads_it(
    storage: Storage, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept, young = [await put(files, b"x", expires=seconds) for seconds in (3600, 3600, 7300)]
    now_s = time.time()
    monkeypatch.setattr("time.time", lambda: now_s + 7200)
    for record in (gone, kept):
        with pytest.raises(FileMissing):
            await files.get(record.id)
    assert await files.sweep({kept.id}, set()) == 1
    assert {entry.name for entry in storage.entries(names.FILES)} == {
        file.id + suffix for file in (kept, young) for suffix in (".json", ".data")
    }
    assert await content(files, kept.id) == b"x"


async def test_a_sweep_removes_what_crashes_left(
    storage: Storage, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await put(files, b"x")
    lost = names.new_file_id()
    storage.write(names.file_content(lost), b"without a record")
    storage.begin().out.close()
    running, ended = batch_of().id, batch_of().id
    for batch_id in (running, ended):
        await files.write_part(batch_id, "p", b"part")
    await files.sweep(set(), {running})
    assert len(storage.entries(TMP)) == 1  # somebody may be writing it
    assert names.file_content(lost).split("/")[1] in {entry.name for entry in storage.entries(names.FILES)}
    now_s = time.time()
    monkeypatch.setattr("time.time", lambda: now_s + file_store.LEFT_OVER_S + 60)
    await files.sweep(set(), {running})
    assert storage.entries(TMP) == []
    assert {entry.name for entry in storage.entries(names.FILES)} == {record.id + ".json", record.id + ".data"}
    assert len(await files.list_parts(running)) == 1
    assert await files.list_parts(ended) == []


# -- storage -------------------------------------------------------------------------------------


def test_of_many_that_create_a_file_one_does(storage: Storage) -> None:
    async def all_at_once() -> list[bool]:
        return await asyncio.gather(*(asyncio.to_thread(storage.create, "a/b", b"%d" % n) for n in range(20)))

    made = asyncio.run(all_at_once())
    if isinstance(storage.read("a/b"), bytes):
        assert made.count(True) >= 1
    assert storage.create("a/b", b"more") is False


def test_local_creation_is_exclusive(tmp_path: Path) -> None:
    storage = storage_of("local", tmp_path)

    async def all_at_once(name: str) -> list[bool]:
        return await asyncio.gather(*(asyncio.to_thread(storage.create, name, b"%d" % n) for n in range(16)))

    for attempt in range(20):
        made = asyncio.run(all_at_once(f"x/{attempt}"))
        assert made.count(True) == 1
        assert storage.read(f"x/{attempt}") == b"%d" % made.index(True)
    assert storage.entries(TMP) == []


def test_without_hard_links_a_file_is_still_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("os.link", no_links)
    storage = storage_of("local", tmp_path)
    assert [storage.create("a", b"1"), storage.create("a", b"2")] == [True, False]
    assert storage.read("a") == b"1"


@pytest.mark.parametrize("url", ["nope://bucket/x", "s3://bucket/x"])
def test_a_file_system_that_is_not_there_is_said_without_the_url(url: str) -> None:
    with pytest.raises(UnusableStorage) as info:
        Storage(url)
    assert "bucket" not in str(info.value)


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnusableStorage, match="cannot be written"):
        Storage(str(tmp_path / "file" / "below")).prepare()
    Storage(str(tmp_path / "good")).prepare()
