"""What tests of every level share."""

import threading
import time
from collections.abc import Callable


def wait_until(predicate: Callable[[], object], description: str, timeout_s: float = 10.0) -> None:
    """Return when `predicate()` is true; fail, naming `description`, when it is not within `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not predicate():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {description}")
        pause.wait(0.01)
