"""In what order a worker empties its queues: interactive strictly before batch, and within a lane in turns.

A lane has a queue for each share (an API key, or several of them); the batch lane has one for programs, too. The share
that was served longest ago comes first, so a key that sends a thousand requests delays the single one of another by one
request.
"""

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from tasks.contracts import Lane, is_program_queue, queue_parts

_RANKS = {lane: rank for rank, lane in enumerate((Lane.INTERACTIVE, Lane.BATCH))}
REMEMBERED = 64  #: turns of a queue that can be taken back; more than requests run at a time


class Turns:
    """When each queue was served. Used by Celery's consumer thread and by those that run tasks."""

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self._served: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._lock = threading.Lock()

    def in_order(self, queues: Iterable[str]) -> list[str]:
        """Whose turn it is first. Queues that are no lane's come last, in the order given."""
        with self._lock:
            return sorted(queues, key=self._place)

    def taken(self, queue: str) -> None:
        """A message of it was delivered: it had its turn."""
        with self._lock:
            self._served[queue].append(next(self._count))

    def give_back(self, queue: str) -> None:
        """The message was one that nobody waits for any more: it has cost the others nothing, so it was no turn."""
        with self._lock:
            if self._served[queue]:
                self._served[queue].pop()

    def _place(self, queue: str) -> tuple[int, int]:
        if is_program_queue(queue):
            rank = _RANKS[Lane.BATCH]
        else:
            parts = queue_parts(queue)
            rank = len(_RANKS) if parts is None else _RANKS[parts.lane]
        served = self._served.get(queue)
        return rank, served[-1] if served else 0


TURNS = Turns()  #: of this worker process; a connection that is made anew changes nothing about whose turn it is


class LaneOrder:
    """kombu's `queue_order_strategy` (kombu 5.7, transport/redis.py).

    Before each BRPOP kombu asks `consume` for the keys, of which Redis takes the first that has a message, and tells
    `rotate` which one it was. With prefetch 1 it asks anew after each task, so no order is older than the last task.
    """

    def __init__(self, queues: Iterable[str] = ()) -> None:
        self._queues = list(queues)

    def update(self, queues: Iterable[str]) -> None:
        self._queues = list(queues)

    def consume(self, n: int) -> Sequence[str]:
        return TURNS.in_order(self._queues)[:n]

    def rotate(self, last_used: str) -> str:
        TURNS.taken(last_used)
        return last_used
