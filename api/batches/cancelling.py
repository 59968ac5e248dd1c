"""Cancels that get lost."""

import asyncio


def check_cancelled() -> None:
    """For loops that talk to Redis: raise CancelledError when this task has been cancelled and still runs.

    redis-py 8.1.0 swallows a cancel that arrives while it connects.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
