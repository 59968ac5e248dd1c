"""The ASGI middleware around the app."""

import asyncio
from contextlib import suppress
from typing import Any

from api import edge
from api.edge import Edge

SCOPE: dict[str, Any] = {"type": "http", "path": "/v1/chat/completions", "method": "POST", "headers": []}


async def run(app: Any) -> None:
    """One exchange whose client leaves at once."""
    messages = [{"type": "http.disconnect"}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError("nothing comes any more")

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there")

    await Edge(app)(SCOPE, receive, send)  # type: ignore[arg-type]


async def test_a_handler_that_lost_its_cancel_is_cancelled_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(edge, "LEAVE_S", 0.01)
    ended = asyncio.Event()

    async def handler() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()  # the cancel that is lost
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.ensure_future(handler())
        await asyncio.sleep(0)
        assert (await receive())["type"] == "http.disconnect"
        task.cancel()
        await asyncio.gather(task)  # as the framework waits for it

    await asyncio.wait_for(run(app), 10)
    assert ended.is_set()


async def test_an_app_that_ends_by_itself_is_left_alone() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    await run(app)


async def test_a_timeout_of_the_apps_own_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise TimeoutError("mine")

    error = None
    try:
        await run(app)
    except TimeoutError as exc:
        error = exc
    assert str(error) == "mine"
