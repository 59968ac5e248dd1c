"""How much of `LIS_FILES_MAX_BYTES` is taken."""

import asyncio
import errno
import time
from collections.abc import Callable
from typing import TypeVar

from api.batches.errors import StorageFull
from api.batches.storage import Storage

MEASURE_S = 30.0  #: a measurement is good for so long; other processes write too
AGAIN_S = 1.0  #: before a refusal it is made again, unless it is that new

Result = TypeVar("Result")


class Usage:
    """Of one storage, as this process knows it."""

    def __init__(self, storage: Storage, max_bytes: int) -> None:
        """`max_bytes` 0: no bound, and nothing is measured."""
        self._storage = storage
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._measured_s = float("-inf")
        self._measuring = asyncio.Lock()

    async def reserve(self, size: int) -> None:
        """Count `size` bytes that are to be written. Raises StorageFull when they are too many."""
        if not self._max_bytes:
            return
        if self._age_s() > MEASURE_S:
            await self._renew(MEASURE_S)
        if self._used_bytes + size > self._max_bytes:
            await self._renew(AGAIN_S)
            if self._used_bytes + size > self._max_bytes:
                raise StorageFull(self._max_bytes)
        self._used_bytes += size

    async def _renew(self, max_age_s: float) -> None:
        async with self._measuring:
            if self._age_s() > max_age_s:
                await asyncio.to_thread(self.measure)

    def _age_s(self) -> float:
        return time.monotonic() - self._measured_s

    def measure(self) -> None:
        """Blocks: for a thread."""
        if self._max_bytes:
            self._used_bytes = self._storage.used_bytes()
            self._measured_s = time.monotonic()

    def forget(self) -> None:
        """Something was removed: the next refusal is measured first."""
        self._measured_s = float("-inf")


def with_room(write: Callable[..., Result], *arguments: object) -> Result:
    """Do it. Raises StorageFull when the disk itself is full."""
    try:
        return write(*arguments)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull from None
        raise
