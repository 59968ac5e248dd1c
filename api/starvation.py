"""A request of the batch lane that was passed over for too long gets one turn between the interactive ones."""

import logging
import time
from collections.abc import Iterable

from api.dispatch import Dispatcher
from api.job import JobState
from api.job_types import QueueUnavailable
from tasks.contracts import Lane

log = logging.getLogger(__name__)

REPEAT_S = 60.0  #: a turn that was not taken for so long is given anew: a message may be lost with its broker


class BatchTurns:
    """Sends the message of the one that has waited longest a second time, to the interactive lane's queue of its share.

    Whichever of the two a worker takes first, the claim lets the request run once; the other message is dropped.
    One request at a time: the next one's turn comes when this one has been taken.
    """

    def __init__(self, dispatcher: Dispatcher, max_wait_s: float) -> None:
        self._dispatcher = dispatcher
        self._max_wait_s = max_wait_s

    async def give(self, jobs: Iterable[JobState]) -> None:
        """Called every half second or so. `max_wait_s` 0: never."""
        if not self._max_wait_s:
            return
        now = time.monotonic()
        waiting = [state for state in jobs if state.request.lane is Lane.BATCH and state.is_waiting()]
        repeat_s = max(REPEAT_S, self._max_wait_s)
        if any(state.turn_at and now - state.turn_at < repeat_s for state in waiting):
            return
        first = min(waiting, key=lambda state: state.created, default=None)
        if first is None or now - first.created < self._max_wait_s:
            return
        first.turn_at = now
        try:
            await self._dispatcher.send_ahead(first)
        except QueueUnavailable:
            first.turn_at = 0.0  # soon again
            return
        extra = {"request_id": first.id, "waited_s": round(now - first.created, 1)}
        log.info("batch request gets a turn", extra=extra)
