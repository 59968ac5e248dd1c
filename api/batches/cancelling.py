"""Cancels that get lost."""

import asyncio


def check_cancelled() -> None:
    """Raise CancelledError when this task has been cancelled and still runs: for loops that may have missed it.

    redis-py 8.1.0 swallows a cancel that arrives while it connects, and Python 3.11's asyncio.wait_for one that arrives
    together with what it waits for.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
