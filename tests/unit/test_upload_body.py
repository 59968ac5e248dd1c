import asyncio

import pytest
from werkzeug.exceptions import RequestEntityTooLarge

from api.edge import Exchange
from api.upload_body import BODY, HELD_BYTES, UploadBody

MIB = b"x" * (1024 * 1024)


async def is_waiting(work: "asyncio.Task[None]") -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not work.done()


async def test_a_full_body_lets_the_client_wait_until_it_is_read() -> None:
    body = UploadBody(None, 10 * HELD_BYTES)
    await body.wait_for_room()
    body.append(b"x" * HELD_BYTES)
    waiting = asyncio.create_task(body.wait_for_room())
    assert await is_waiting(waiting)
    assert len(await anext(body)) == HELD_BYTES
    await waiting


async def test_a_body_that_nobody_reads_any_more_takes_everything_and_keeps_nothing() -> None:
    body = UploadBody(None, 10 * HELD_BYTES)
    body.append(b"x" * HELD_BYTES)
    waiting = asyncio.create_task(body.wait_for_room())
    assert await is_waiting(waiting)
    body.let_go()
    await waiting
    assert len(body._data) == 0


async def test_what_is_declared_too_large_is_refused_before_it_comes() -> None:
    with pytest.raises(RequestEntityTooLarge):
        await anext(UploadBody(1001, 1000))


async def test_the_connection_is_not_read_while_the_body_is_full() -> None:
    taken = 0

    async def receive() -> dict[str, object]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": MIB, "more_body": True}

    body = UploadBody(None, 100 * HELD_BYTES)
    exchange = Exchange(receive, None, {BODY: body})  # type: ignore[arg-type]

    async def framework() -> None:
        while True:
            message = await exchange.receive()
            body.append(message["body"])  # type: ignore[typeddict-item]
            await asyncio.sleep(0)

    reading = asyncio.create_task(framework())
    assert await is_waiting(reading)
    assert taken == 1
    await anext(body)
    assert await is_waiting(reading)
    assert taken == 2
    reading.cancel()
