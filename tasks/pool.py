"""The worker's threads: as many as the engine has slots, of which a monitor may have fewer used."""

from celery.concurrency.thread import TaskPool


class SlotPool(TaskPool):
    """Grows and shrinks between 1 and the concurrency it was made with (LIS_PARALLEL).

    How many tasks run follows from how many messages Celery takes, `limit` times the prefetch of 1; a thread more or
    less changes nothing. More than the engine has slots would only wait there, after their clients were told that
    they run.
    """

    limit: int

    def on_start(self) -> None:
        self.slots = self.limit

    def grow(self, n: int = 1) -> None:
        self._resize(self.limit + n)

    def shrink(self, n: int = 1) -> None:
        self._resize(self.limit - n)

    def _resize(self, size: int) -> None:
        if not 1 <= size <= self.slots:
            raise ValueError(f"the pool can have 1 to {self.slots} (LIS_PARALLEL), not {size}")
        self.limit = size
