"""FileStore: files by id, and the parts of what a batch writes.

    files/{id}.json      the FileRecord, written last: from then on the file exists
    files/{id}.data      its content
    parts/{batch}/{name}

Nothing here needs Redis. Blocking calls run on threads.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator, Sequence, Set
from contextlib import aclosing
from typing import BinaryIO, NamedTuple

import msgspec

from api.batches import names
from api.batches.errors import FileMissing
from api.batches.lines import Line, read_lines
from api.batches.records import FileRecord
from api.batches.storage import Entry, Storage
from api.batches.upload import BLOCK_BYTES, MAX_FILE_BYTES, Upload
from api.batches.usage import Usage, with_room

LEFT_OVER_S = 2 * 86_400.0  #: what no record speaks of after so long belongs to nobody


class FilePage(NamedTuple):
    files: list[FileRecord]
    has_more: bool


class FileStore:
    """One per API process; several processes may share a storage."""

    def __init__(
        self, storage: Storage, ttl_s: float, max_bytes: int = 0, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """`ttl_s`: how long files are kept that say nothing else. `max_bytes`: of all there is; 0: no bound."""
        self.max_file_bytes = max_file_bytes
        self._storage = storage
        self._ttl_s = ttl_s
        self._usage = Usage(storage, max_bytes)
        self._known: dict[str, FileRecord] = {}  # records never change

    # -- files -------------------------------------------------------------------------------------

    async def begin(self) -> Upload:
        """A new file, to be written and committed; bounded. Use it in `async with aclosing(upload)`."""
        return await self._begin(self.max_file_bytes)

    async def get(self, file_id: str, key_name: str | None = None) -> FileRecord:
        """`key_name`: whose it must be; None: anybody's. Raises FileMissing."""
        record = await asyncio.to_thread(self._read, file_id)
        if record is None or (key_name is not None and record.key_name != key_name) or _has_expired(record):
            raise FileMissing(file_id)
        return record

    async def page(
        self, key_name: str, purpose: str | None, after: str | None, limit: int, is_descending: bool
    ) -> FilePage:
        """A key's files by time of creation. `after`: the last id of the page before. Raises FileMissing."""
        records = [
            record
            for record in await asyncio.to_thread(self._all)
            if record.key_name == key_name and purpose in (None, record.purpose) and not _has_expired(record)
        ]
        records.sort(key=lambda record: (record.created_at, record.id), reverse=is_descending)
        if after is not None:
            place = next((index for index, record in enumerate(records) if record.id == after), None)
            if place is None:
                raise FileMissing(after)
            records = records[place + 1 :]
        return FilePage(records[:limit], len(records) > limit)

    async def delete(self, file_id: str, key_name: str | None = None) -> None:
        """Raises FileMissing."""
        await self.get(file_id, key_name)
        await asyncio.to_thread(self._remove, file_id)

    async def content(self, file_id: str) -> AsyncGenerator[bytes]:
        """The whole file in blocks of 1 MiB. Raises FileMissing."""
        file = await asyncio.to_thread(self._open, file_id, 0)
        try:
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                yield block
        finally:
            await asyncio.to_thread(file.close)

    def iter_lines(self, file_id: str, max_line_bytes: int, offset: int = 0, number: int = 1) -> Generator[Line]:
        """The lines that are not blank, from `offset` on, where line `number` begins. Blocks: for a thread.

        Raises FileMissing. Close it when it is not read to its end.
        """
        with contextlib.closing(self._open(file_id, offset)) as file:
            yield from read_lines(file, max_line_bytes, offset, number)

    async def read_lines(
        self, file_id: str, offset: int, number: int, *, max_lines: int, max_bytes: int, max_line_bytes: int
    ) -> list[Line]:
        """The next lines that are not blank, as many as both bounds allow, but one at least. Empty: there are no more.

        To go on, ask from the last one's `end` with its `number` + 1. Raises FileMissing.
        """

        def read() -> list[Line]:
            lines: list[Line] = []
            size = 0
            with contextlib.closing(self.iter_lines(file_id, max_line_bytes, offset, number)) as found:
                for line in found:
                    size += line.end - line.offset
                    if lines and size > max_bytes:
                        break
                    lines.append(line)
                    if len(lines) >= max_lines:
                        break
            return lines

        return await asyncio.to_thread(read)

    # -- parts of a batch's answer -----------------------------------------------------------------

    async def write_part(self, batch_id: str, name: str, data: bytes) -> None:
        """Whole or not at all; a part that is there already is replaced. Raises StorageFull."""
        await self._usage.reserve(len(data))
        await asyncio.to_thread(with_room, self._storage.write, names.part(batch_id, name), data)

    async def create_part(self, batch_id: str, name: str, data: bytes) -> bool:
        """Whole or not at all. False: it is there already, and stays. Raises StorageFull."""
        await self._usage.reserve(len(data))
        return await asyncio.to_thread(with_room, self._storage.create, names.part(batch_id, name), data)

    async def list_parts(self, batch_id: str) -> list[Entry]:
        """By name, with their sizes."""
        return await asyncio.to_thread(self._storage.entries, names.part_folder(batch_id))

    async def read_part(self, batch_id: str, name: str) -> bytes:
        """Raises FileNotFoundError."""
        return await asyncio.to_thread(self._storage.read, names.part(batch_id, name))

    async def assemble(
        self,
        batch_id: str,
        parts: Sequence[str],
        kind: str,
        *,
        filename: str,
        key_name: str,
        expires_after_s: int | None = None,
    ) -> FileRecord:
        """One file of these parts in this order, with purpose `batch_output`.

        Batch and `kind` (`output`, `error`) decide its id: asked twice, it is made once. Raises StorageFull,
        FileNotFoundError.
        """
        file_id = names.file_id_of(batch_id, kind)
        found = await asyncio.to_thread(self._read, file_id)
        if found is not None:
            return found
        async with aclosing(await self._begin(0)) as upload:
            for name in parts:
                await upload.write(await self.read_part(batch_id, name))
            return await upload.commit(filename, "batch_output", key_name, expires_after_s, file_id)

    async def remove_parts(self, batch_id: str) -> None:
        await asyncio.to_thread(self._storage.remove_folder, names.part_folder(batch_id))
        self._usage.forget()

    # -- upkeep ------------------------------------------------------------------------------------

    async def sweep(self, in_use: Set[str], unfinished: Set[str]) -> int:
        """Remove expired files that are not `in_use`, parts of batches that are not `unfinished`, what crashes left.

        Returns how many files went.
        """
        return await asyncio.to_thread(self._sweep, in_use, unfinished)

    # -- inside, on threads ------------------------------------------------------------------------

    async def _begin(self, max_bytes: int) -> Upload:
        pending = await asyncio.to_thread(with_room, self._storage.begin)
        return Upload(self._storage, self._usage, pending, self._ttl_s, max_bytes)

    def _sweep(self, in_use: Set[str], unfinished: Set[str]) -> int:
        expired = [record.id for record in self._all() if _has_expired(record) and record.id not in in_use]
        for file_id in expired:
            self._remove(file_id)
        found = {entry.name for entry in self._storage.entries(names.FILES)}
        for content in (name for name in found if name.endswith(names.CONTENT)):
            file_id = content.removesuffix(names.CONTENT)
            if file_id + names.RECORD not in found and _is_left_over(file_id):
                self._storage.remove(names.file_content(file_id))
        for batch_id in {name.split("/")[0] for name in self._storage.tree(names.PARTS)} - unfinished:
            self._storage.remove_folder(names.part_folder(batch_id))
        self._storage.sweep_temporary(LEFT_OVER_S)
        self._usage.measure()
        return len(expired)

    def _read(self, file_id: str) -> FileRecord | None:
        """From the storage each time: another process may have removed it."""
        if not names.FILE_ID.fullmatch(file_id):
            return None
        try:
            data = self._storage.read(names.file_record(file_id))
        except FileNotFoundError:
            self._known.pop(file_id, None)
            return None
        self._known[file_id] = record = msgspec.json.decode(data, type=FileRecord)
        return record

    def _all(self) -> list[FileRecord]:
        found = [entry.name for entry in self._storage.entries(names.FILES)]
        ids = {name.removesuffix(names.RECORD) for name in found if name.endswith(names.RECORD)}
        for gone in set(self._known) - ids:
            self._known.pop(gone, None)
        records = (self._known.get(file_id) or self._read(file_id) for file_id in ids)
        return [record for record in records if record is not None]

    def _open(self, file_id: str, offset: int) -> BinaryIO:
        if not names.FILE_ID.fullmatch(file_id):
            raise FileMissing(file_id)
        try:
            return self._storage.open(names.file_content(file_id), offset)
        except FileNotFoundError:
            raise FileMissing(file_id) from None

    def _remove(self, file_id: str) -> None:
        """Record first: what a crash in between leaves is content that nobody sees."""
        self._storage.remove(names.file_record(file_id))
        self._known.pop(file_id, None)
        self._storage.remove(names.file_content(file_id))
        self._usage.forget()


def _has_expired(record: FileRecord) -> bool:
    return record.expires_at <= time.time()


def _is_left_over(file_id: str) -> bool:
    return bool(names.FILE_ID.fullmatch(file_id)) and names.made_at_s(file_id) < time.time() - LEFT_OVER_S
