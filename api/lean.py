"""Smaller parts of asyncio for what every open request holds: a `deque` takes 0.7 KiB even when it is empty.

A waiting request has a dozen of them by default, of our own, the framework's and the HTTP server's.
"""

import asyncio
from typing import Any, TypeVar

from hypercorn.asyncio.worker_context import EventWrapper

T = TypeVar("T")


class ShortQueue(list[T]):
    """What asyncio uses of a deque, for a few items at a time."""

    def popleft(self) -> T:
        return self.pop(0)


class Signal(asyncio.Event):
    """An Event, small."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters: Any = ShortQueue()


class ServerSignal(EventWrapper):
    """The HTTP server's wrapper of an Event, small."""

    def __init__(self) -> None:
        self._event = Signal()


class Messages(asyncio.Queue[T]):
    """A Queue, small."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._getters: Any = ShortQueue()
        self._putters: Any = ShortQueue()
        self._queue: Any = ShortQueue()
        self._finished: Any = Signal()
        self._finished.set()  # as a queue to which nothing was put
