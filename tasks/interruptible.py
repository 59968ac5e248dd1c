"""Runs blocking work so that the caller can leave it at once.

A socket read, a name look-up or a TLS handshake cannot be interrupted from Python; the thread that waits for it can be
left behind.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from tasks.engines.base import Cancelled

Result = TypeVar("Result")

POLL_S = 0.1
PARTING_S = 0.3  #: given to the work to see the event, close its files and let go of its locks


def run_interruptibly(work: Callable[[threading.Event], Result], should_stop: Callable[[], bool]) -> Result:
    """`work(event)` on a daemon thread: its result, or its exception. Raises Cancelled when `should_stop` says yes.

    The event is set then, and when this call ends in any other way: the work must end when it sees it.
    """
    event = threading.Event()
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work(event))
        except BaseException as exc:  # noqa: BLE001 - it is raised in the caller's thread
            outcome.set_exception(exc)

    threading.Thread(target=run, name="interruptible", daemon=True).start()
    try:
        while not wait([outcome], timeout=POLL_S).done:
            if should_stop():
                event.set()
                wait([outcome], timeout=PARTING_S)
                raise Cancelled
    finally:
        event.set()
    return outcome.result()
