"""HTTP over real sockets: what a test client cannot show."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import psutil
import pytest

from tests.integration.http_server import (
    CHAT_BODY,
    DEADLINE_S,
    MIB,
    Connection,
    Server,
    assert_alive,
    connect,
    head,
    running_server,
)
from tests.unit.fake_jobs import delta, finished


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with running_server() as server:
        yield server


# -- HTTP itself ---------------------------------------------------------------------------------


async def test_head_has_no_body_and_the_next_answer_is_intact(server: Server) -> None:
    async with connect(server) as connection:
        await connection.send(head("HEAD", "/v1/models") + head("GET", "/v1/models", "Connection: close\r\n"))
        first = await connection.answer(has_body=False)
        second = await connection.answer()
    assert (first.status, second.status) == (200, 200)
    assert first.headers["content-length"] == second.headers["content-length"]
    assert json.loads(second.body)["object"] == "list"


@pytest.mark.parametrize("length", ["9" * 40, "9" * 19, "-1", "x"])
async def test_senseless_content_length_is_refused_at_once(server: Server, length: str) -> None:
    async with connect(server) as connection:
        await connection.send(head("POST", "/v1/chat/completions", f"Content-Length: {length}\r\n") + b"{}")
        status, _ = await connection.head()
        assert status in (400, 413)
        await assert_alive(server)
    assert not server.jobs.submitted


async def test_absolute_target_and_http_1_0(server: Server) -> None:
    async with connect(server) as connection:
        await connection.send(head("GET", "http://x/v1/models/", version="1.0"))
        answer = await connection.answer()
        assert answer.status == 200
        assert await connection.reader.read() == b""


async def test_a_wish_for_websocket_is_not_heard(server: Server) -> None:
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    async with connect(server) as connection:
        await connection.send(head("GET", "/v1/models", upgrade + "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"))
        assert (await connection.answer()).status == 200
    await assert_alive(server)


async def test_body_that_never_comes_is_a_json_408(server: Server) -> None:
    server.app.config["BODY_TIMEOUT"] = 0.1
    async with connect(server) as connection:
        await connection.send(head("POST", "/v1/chat/completions", "Content-Length: 100\r\n") + b"{")
        answer = await connection.answer()
    assert answer.status == 408
    assert answer.error()["code"] == "request_timeout"


async def test_body_cut_off_by_the_client_starts_nothing(server: Server) -> None:
    async with connect(server) as connection:
        await connection.send(head("POST", "/v1/chat/completions", "Content-Length: 1000\r\n") + b'{"model"')
        connection.writer.write_eof()
        await connection.reader.read()
    await assert_alive(server)
    assert not server.jobs.submitted


# -- bodies that are too large -------------------------------------------------------------------


def chunked(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


async def send_large(connection: Connection, total_mib: int, wrap: Callable[[bytes], bytes]) -> int:
    """Send it all before reading anything, as many clients do. Returns the largest growth of our own memory, MiB."""
    process = psutil.Process()
    piece = wrap(b"a" * MIB)
    before = process.memory_info().rss
    growth = 0
    for _ in range(total_mib):
        await connection.send(piece)
        growth = max(growth, process.memory_info().rss - before)
    return growth // MIB


async def test_100_mib_body_gets_its_413_while_the_client_still_sends(server: Server) -> None:
    async with connect(server) as connection:
        await connection.send(head("POST", "/v1/chat/completions", f"Content-Length: {100 * MIB}\r\n"))
        growth_mib = await send_large(connection, 100, bytes)
        answer = await connection.answer()
        assert answer.status == 413
        assert answer.error()["code"] == "request_too_large"
        assert str(32 * MIB) in answer.error()["message"]
        assert growth_mib < 30
        await connection.send(head("GET", "/v1/models"))  # the whole body was read, so the connection lives on
        assert (await connection.answer()).status == 200
    assert not server.jobs.submitted


async def test_413_comes_before_the_body_when_its_length_is_told(server: Server) -> None:
    async with connect(server) as connection:
        await connection.send(head("POST", "/v1/chat/completions", f"Content-Length: {100 * MIB}\r\n"))
        assert (await connection.answer()).status == 413


async def test_body_of_untold_length_is_cut_at_the_limit(server: Server) -> None:
    async with connect(server) as connection:
        await connection.send(head("POST", "/v1/chat/completions", "Transfer-Encoding: chunked\r\n"))
        growth_mib = await send_large(connection, 100, chunked)
        await connection.send(b"0\r\n\r\n")
        answer = await connection.answer()
    assert answer.status == 413
    assert growth_mib < 32 + 40
    assert not server.jobs.submitted


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/nope", "", 404),
        ("/v1/models", "", 405),
        ("/v1/chat/completions", "Content-Encoding: br\r\n", 415),
    ],
)
async def test_early_answer_reaches_a_client_that_still_sends(
    server: Server, path: str, headers: str, status: int
) -> None:
    async with connect(server) as connection:
        await connection.send(head("POST", path, f"Content-Length: {20 * MIB}\r\n{headers}"))
        await send_large(connection, 20, bytes)
        assert (await connection.answer()).status == status


# -- streams -------------------------------------------------------------------------------------


async def test_head_and_role_come_before_the_first_token(server: Server) -> None:
    gate = asyncio.Event()
    server.jobs.running = [gate, delta("x"), finished()]
    async with connect(server) as connection:
        await connection.post("/v1/chat/completions", CHAT_BODY | {"stream": True})
        status, headers = await connection.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert b'"role":"assistant"' in await connection.until(b"\n\n")
        gate.set()
        assert b'"content":"x"' in await connection.until(b'"x"}')
        await connection.until(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_outlive_the_response_timeout(server: Server, stream: bool) -> None:
    server.app.config["RESPONSE_TIMEOUT"] = 0.1
    gate = asyncio.Event()
    server.jobs.running = [delta("first"), gate, delta("last"), finished()]
    async with connect(server) as connection:
        await connection.post("/v1/chat/completions", CHAT_BODY | {"stream": stream})
        await asyncio.wait_for(server.jobs.has_started.wait(), DEADLINE_S)
        asyncio.get_running_loop().call_later(0.5, gate.set)
        if stream:
            await connection.until(b"data: [DONE]\n\n")
        else:
            assert b"firstlast" in (await connection.answer()).body


async def test_http_1_0_stream_ends_with_the_connection(server: Server) -> None:
    data = json.dumps(CHAT_BODY | {"stream": True}).encode()
    async with connect(server) as connection:
        await connection.send(head("POST", "/v1/chat/completions", f"Content-Length: {len(data)}\r\n", "1.0") + data)
        assert (await connection.reader.read()).endswith(b"data: [DONE]\n\n")


async def test_many_streams_on_one_connection(server: Server) -> None:
    async with connect(server) as connection:
        for _ in range(30):
            await connection.post("/v1/chat/completions", CHAT_BODY | {"stream": True})
            await connection.until(b"data: [DONE]\n\n")
            await connection.until(b"0\r\n\r\n")
    assert len({request.id for request in server.jobs.submitted}) == 30
    assert not server.jobs.cancelled
