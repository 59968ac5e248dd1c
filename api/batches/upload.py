"""A file on its way into the store."""

import asyncio
import time

import msgspec

from api.batches import names
from api.batches.errors import FileTooLarge
from api.batches.records import FileRecord
from api.batches.storage import Pending, Storage
from api.batches.usage import Usage, with_room

MAX_FILE_BYTES = 200 * 1024 * 1024  #: of an upload: OpenAI's limit for batches, 200 MB, in the larger reading
BLOCK_BYTES = 1024 * 1024  #: written at a time


class Upload:
    """Written piece by piece; it holds 1 MiB at most. Use it in `async with aclosing(upload)`."""

    def __init__(self, storage: Storage, usage: Usage, pending: Pending, ttl_s: float, max_bytes: int) -> None:
        """`max_bytes` 0: no bound of its own."""
        self.size = 0
        self._storage = storage
        self._usage = usage
        self._pending = pending
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._block = bytearray()

    async def write(self, data: bytes) -> None:
        """Raises FileTooLarge, StorageFull."""
        self.size += len(data)
        if self._max_bytes and self.size > self._max_bytes:
            raise FileTooLarge(self._max_bytes)
        self._block += data
        if len(self._block) >= BLOCK_BYTES:
            await self._flush()

    async def commit(
        self,
        filename: str,
        purpose: str,
        key_name: str,
        expires_after_s: int | None = None,
        file_id: str | None = None,
    ) -> FileRecord:
        """From now on it is there. Raises StorageFull."""
        await self._flush()
        file_id = file_id or names.new_file_id()
        now_s = int(time.time())
        record = FileRecord(
            id=file_id,
            bytes=self.size,
            created_at=now_s,
            expires_at=now_s + int(expires_after_s or self._ttl_s),
            filename=filename,
            purpose=purpose,
            key_name=key_name,
        )

        def name_both() -> None:
            self._pending.finish(names.file_content(file_id))
            self._storage.write(names.file_record(file_id), msgspec.json.encode(record))

        await asyncio.to_thread(with_room, name_both)
        return record

    async def aclose(self) -> None:
        """What was not committed is gone."""
        await asyncio.to_thread(self._pending.discard)

    async def _flush(self) -> None:
        if self._block:
            block = bytes(self._block)
            self._block.clear()
            await self._usage.reserve(len(block))
            await asyncio.to_thread(with_room, self._pending.out.write, block)
