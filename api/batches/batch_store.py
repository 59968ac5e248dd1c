"""BatchStore: batches as a row of versions, each a file that is created once.

    batches/{id}/{version}.json   the BatchRecord; the highest version holds

Creating a file that is there fails, so of two processes that change a batch at the same moment one sees the other's
version and does its change again on top of it. Redis has what may be lost (api/batches/live.py).
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from api.batches import names
from api.batches.errors import BatchMissing
from api.batches.records import BatchRecord
from api.batches.storage import Storage

KEPT_VERSIONS = 16  #: a process that is so many versions behind notices only by their number
MAX_TRIES = 50  #: of a change that other processes forestall, with up to RETRY_S in between
RETRY_S = 0.02


class BatchPage(NamedTuple):
    batches: list[BatchRecord]
    has_more: bool


class BatchStore:
    """One per API process; several processes may share a storage. Blocking calls run on threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, BatchRecord] = {}  #: the last version seen of each
        self._changing = threading.Lock()  #: this process need not compete with itself

    async def create(self, batch: BatchRecord) -> BatchRecord:
        """`batch` has a new id (names.new_batch_id) and version 1."""
        await asyncio.to_thread(self._write, batch)
        return batch

    async def get(self, batch_id: str, key_name: str | None = None) -> BatchRecord:
        """`key_name`: whose it must be; None: anybody's. Raises BatchMissing."""
        batch = await asyncio.to_thread(self._read, batch_id)
        if batch is None or (key_name is not None and batch.key_name != key_name):
            raise BatchMissing(batch_id)
        return batch

    async def page(self, key_name: str, after: str | None, limit: int) -> BatchPage:
        """A key's batches, the newest first. `after`: the last id of the page before. Raises BatchMissing."""
        batches = [batch for batch in await self.all() if batch.key_name == key_name]
        batches.sort(key=lambda batch: batch.id, reverse=True)
        if after is not None:
            place = next((index for index, batch in enumerate(batches) if batch.id == after), None)
            if place is None:
                raise BatchMissing(after)
            batches = batches[place + 1 :]
        return BatchPage(batches[:limit], len(batches) > limit)

    async def update(self, batch_id: str, change: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """Change the batch as it is now, and return what it has become.

        `change` must depend on its argument alone: it is called again when another process was faster. What it returns
        unchanged is not written, and what it raises leaves the batch as it is. Raises BatchMissing.
        """

        def run() -> BatchRecord:
            with self._changing:
                return self._change(batch_id, change)

        return await asyncio.to_thread(run)

    async def unfinished(self) -> list[BatchRecord]:
        """All that have not ended, whoever works on them, the oldest first."""
        return sorted((batch for batch in await self.all() if not batch.has_ended), key=lambda batch: batch.id)

    async def all(self) -> list[BatchRecord]:
        return await asyncio.to_thread(self._all)

    async def remove(self, batch_id: str) -> None:
        """The record; nothing happens when it is not there."""
        self._known.pop(batch_id, None)
        await asyncio.to_thread(self._storage.remove_folder, names.batch_folder(batch_id))

    # -- inside, on threads ------------------------------------------------------------------------

    def _change(self, batch_id: str, change: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        for _ in range(MAX_TRIES):
            before = self._read(batch_id)
            if before is None:
                raise BatchMissing(batch_id)
            after = change(before)
            if after == before:
                return before
            after = msgspec.structs.replace(after, version=before.version + 1)
            if self._write(after):
                return after
            time.sleep(random.uniform(0.0, RETRY_S))  # noqa: S311 - no secret
        raise RuntimeError(f"batch {batch_id} changes all the time")

    def _write(self, batch: BatchRecord) -> bool:
        """False: another process has made this version."""
        if not self._storage.create(names.batch_version(batch.id, batch.version), msgspec.json.encode(batch)):
            return False
        versions = self._versions(batch.id)
        if max(versions, default=0) - batch.version >= KEPT_VERSIONS:  # it had been, and was removed since
            self._storage.remove(names.batch_version(batch.id, batch.version))
            return False
        for version in versions:
            if version <= batch.version - KEPT_VERSIONS:
                self._storage.remove(names.batch_version(batch.id, version))
        self._known[batch.id] = batch
        return True

    def _read(self, batch_id: str) -> BatchRecord | None:
        if not names.BATCH_ID.fullmatch(batch_id):
            return None
        versions = self._versions(batch_id)
        return self._at(batch_id, max(versions)) if versions else None

    def _at(self, batch_id: str, version: int) -> BatchRecord | None:
        known = self._known.get(batch_id)
        if known is not None and known.version == version:
            return known
        try:
            data = self._storage.read(names.batch_version(batch_id, version))
        except FileNotFoundError:  # removed since it was listed: there are newer ones, or none
            return self._read(batch_id)
        self._known[batch_id] = batch = msgspec.json.decode(data, type=BatchRecord)
        return batch

    def _all(self) -> list[BatchRecord]:
        latest: dict[str, int] = {}
        for name in self._storage.tree(names.BATCHES):
            batch_id, _, file = name.partition("/")
            if names.BATCH_ID.fullmatch(batch_id) and (version := _version(file)):
                latest[batch_id] = max(version, latest.get(batch_id, 0))
        for gone in set(self._known) - set(latest):
            self._known.pop(gone, None)
        found = (self._at(batch_id, version) for batch_id, version in latest.items())
        return [batch for batch in found if batch is not None]

    def _versions(self, batch_id: str) -> list[int]:
        found = (_version(entry.name) for entry in self._storage.entries(names.batch_folder(batch_id)))
        return [version for version in found if version]


def _version(file: str) -> int:
    """0: it is none."""
    digits = file.removesuffix(names.RECORD)
    return int(digits) if file.endswith(names.RECORD) and digits.isascii() and digits.isdigit() else 0
