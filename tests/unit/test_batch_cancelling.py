"""A cancel that redis-py swallows while it connects."""

import asyncio

from api.batches.cancelling import check_cancelled


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
