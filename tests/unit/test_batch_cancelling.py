"""Cancels that redis-py and asyncio swallow."""

import asyncio

import pytest

from api.batches.cancelling import check_cancelled
from api.batches.runner.lane import Slots


async def test_a_loop_whose_cancel_was_swallowed_ends_at_its_next_check() -> None:
    swallowed = asyncio.Event()

    async def loop() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed.set()
            check_cancelled()

    task = asyncio.ensure_future(loop())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert swallowed.is_set() and task.cancelled()


async def test_a_task_that_nobody_has_cancelled_goes_on() -> None:
    check_cancelled()


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancel_that_comes_with_a_free_slot_is_not_lost(turns: int) -> None:
    slots = Slots(lambda: 1)
    await slots.acquire()

    async def take_two() -> None:
        await slots.acquire()
        await slots.acquire()

    task = asyncio.ensure_future(take_two())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    slots.release()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=1)
    is_cancelled = task.cancelled()
    slots.release()
    task.cancel()
    assert is_cancelled
