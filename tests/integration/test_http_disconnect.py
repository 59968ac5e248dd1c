"""Clients that leave, over real sockets: the job is cancelled in every phase."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.integration.http_server import (
    CHAT_BODY,
    DEADLINE_S,
    EMBED_BODY,
    Connection,
    Server,
    assert_alive,
    connect,
    head,
    running_server,
)
from tests.unit.fake_jobs import CHAT, delta, finished, progress


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with running_server() as server:
        yield server


Leave = Callable[[Connection], None]
LEAVES: list[Leave] = [Connection.abort, lambda connection: connection.writer.close()]


async def assert_cancelled(server: Server) -> None:
    await asyncio.wait_for(server.jobs.was_cancelled.wait(), DEADLINE_S)
    if server.jobs.submitted:
        assert server.jobs.cancelled == [server.jobs.submitted[0].id]
    await assert_alive(server)


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_client_that_leaves_while_waiting_cancels(server: Server, path: str, stream: bool, leave: Leave) -> None:
    server.jobs.waiting = [asyncio.Event()]
    async with connect(server) as connection:
        body = CHAT_BODY if "chat" in path else {"model": CHAT, "prompt": "hi"}
        await connection.post(path, body | {"stream": stream})
        await asyncio.wait_for(server.jobs.was_submitted.wait(), DEADLINE_S)
        leave(connection)
        await assert_cancelled(server)


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_during_prefill_cancels(server: Server, stream: bool, leave: Leave) -> None:
    server.jobs.running = [progress(1, 9), asyncio.Event()]
    async with connect(server) as connection:
        await connection.post("/v1/chat/completions", CHAT_BODY | {"stream": stream})
        await asyncio.wait_for(server.jobs.has_started.wait(), DEADLINE_S)
        leave(connection)
        await assert_cancelled(server)


@pytest.mark.parametrize("leave", LEAVES)
async def test_client_that_leaves_between_tokens_cancels(server: Server, leave: Leave) -> None:
    server.jobs.running = [delta("x"), asyncio.Event()]
    async with connect(server) as connection:
        await connection.post("/v1/chat/completions", CHAT_BODY | {"stream": True})
        await connection.until(b'"content":"x"')
        leave(connection)
        await assert_cancelled(server)


async def test_client_that_leaves_unread_output_behind_cancels(server: Server) -> None:
    """The handler is blocked in a send then, not in a read of the next event."""
    server.jobs.running = [*[delta("x" * 100_000) for _ in range(500)], finished()]
    async with connect(server, read_limit=1024) as connection:
        await connection.post("/v1/chat/completions", CHAT_BODY | {"stream": True})
        await connection.until(b"\r\n\r\n")
        assert not server.jobs.was_cancelled.is_set()
        connection.abort()
        await assert_cancelled(server)


@pytest.mark.parametrize("leave", LEAVES)
async def test_client_that_leaves_an_embeddings_request_cancels(server: Server, leave: Leave) -> None:
    server.jobs.embed_steps = [asyncio.Event()]
    async with connect(server) as connection:
        await connection.post("/v1/embeddings", EMBED_BODY)
        await asyncio.wait_for(server.jobs.was_submitted.wait(), DEADLINE_S)
        leave(connection)
        await assert_cancelled(server)


async def test_client_that_left_is_in_the_access_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.jobs.waiting = [asyncio.Event()]
    with caplog.at_level(logging.INFO, logger="api.access"):
        async with connect(server) as connection:
            await connection.post("/v1/chat/completions", CHAT_BODY)
            await asyncio.wait_for(server.jobs.was_submitted.wait(), DEADLINE_S)
            connection.abort()
            await assert_cancelled(server)
    [record] = [record for record in caplog.records if record.getMessage() == "client left"]
    assert record.__dict__["status"] == 0


async def test_client_that_reads_done_and_stays_holds_nothing(server: Server) -> None:
    async with connect(server) as idle:
        await idle.post("/v1/chat/completions", CHAT_BODY | {"stream": True})
        await idle.until(b"data: [DONE]\n\n")
        await assert_alive(server)
    assert not server.jobs.cancelled


async def test_others_are_served_while_one_waits(server: Server) -> None:
    server.jobs.waiting = [asyncio.Event()]

    async def get(path: str) -> int:
        async with connect(server) as connection:
            await connection.send(head("GET", path))
            return (await connection.answer()).status

    async with connect(server) as waiting:
        await waiting.post("/v1/chat/completions", CHAT_BODY)
        await asyncio.wait_for(server.jobs.was_submitted.wait(), DEADLINE_S)
        calls: list[Awaitable[int]] = [get(path) for path in ["/health", "/v1/models"] * 10]
        assert await asyncio.wait_for(asyncio.gather(*calls), DEADLINE_S) == [200] * 20
