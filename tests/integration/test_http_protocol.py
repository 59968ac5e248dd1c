"""What Hypercorn would answer by itself, and HTTP/2, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from benchmarks.fuzz.http2 import Client
from benchmarks.fuzz.requests import Case
from tests.integration.http_server import CHAT_BODY, Server, assert_alive, connect, head, running_server

CHAT = Case("POST", "/v1/chat/completions", json.dumps(CHAT_BODY).encode())
MODELS = Case("GET", "/v1/models")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with running_server() as server:
        yield server


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GARBAGE\r\n\r\n", 400, "bad_request"),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-A : spaced\r\n\r\n", 400, "bad_request"),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-A: " + b"v" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (head("POST", "/v1/chat/completions", "Transfer-Encoding: gzip\r\n"), 400, "bad_request"),
        (head("POST", "/v1/chat/completions", "Transfer-Encoding: chunked\r\n") + b"xyz\r\n", 400, "bad_request"),
    ],
)
async def test_what_is_not_http_gets_the_error_envelope(server: Server, data: bytes, status: int, code: str) -> None:
    async with connect(server) as connection:
        await connection.send(data)
        answer = await connection.answer()
        assert await connection.reader.read() == b""
    assert answer.status == status
    assert answer.error()["code"] == code
    assert answer.headers["x-request-id"].startswith("req-")
    await assert_alive(server)
    assert not server.jobs.submitted


@pytest.mark.parametrize("wish", ["websocket", "h2c"])
async def test_a_wish_for_another_protocol_is_not_heard(server: Server, wish: str) -> None:
    async with connect(server) as connection:
        headers = f"Upgrade: {wish}\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: !\r\n"
        await connection.send(head("GET", "/v1/models", headers) + head("GET", "/v1/models"))
        assert (await connection.answer()).status == 200
        assert (await connection.answer()).status == 200


@pytest.mark.parametrize("first", [b"", head("GET", "/v1/models"), b"GET /v1/mod"])
async def test_a_connection_that_its_client_closes_is_closed_at_once(server: Server, first: bytes) -> None:
    async with connect(server) as connection:
        await connection.send(first)
        if first.endswith(b"\r\n\r\n"):
            assert (await connection.answer()).status == 200
        connection.writer.write_eof()
        async with asyncio.timeout(2):
            await connection.reader.read()


# -- HTTP/2 --------------------------------------------------------------------------------------


async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Client:
    client = Client(reader, writer, "no key is asked for")
    client.h2.initiate_connection()
    return client


async def test_http2_answers_several_at_once(server: Server) -> None:
    async with connect(server) as connection:
        client = await begin(connection.reader, connection.writer)
        for case in (CHAT, MODELS, CHAT, Case("GET", "/nowhere")):
            client.ask(case)
        await client.flush()
        await client.read()
    assert sorted(answer.status for answer in client.answers) == [200, 200, 200, 404]


@pytest.mark.parametrize(
    "case", [Case("CONNECT", ""), Case("GET", ""), Case("GET", "/\xe9"), Case("CONNECT", "/v1/models")]
)
async def test_a_malformed_http2_request_ends_its_own_stream_at_most(server: Server, case: Case) -> None:
    async with connect(server) as connection:
        client = await begin(connection.reader, connection.writer)
        client.ask(case)
        await client.flush()
        await client.read()
        assert not client.answers
    await assert_alive(server)


async def test_more_of_an_http2_body_after_its_answer_ends_nothing_else(server: Server) -> None:
    async with connect(server) as connection:
        client = await begin(connection.reader, connection.writer)
        refused = client.ask(Case("POST", "/v1/chat/completions", b"{", (("content-encoding", "br"),)), is_ended=False)
        await client.flush()
        await client.read()  # refused before its end, once nothing came for a second
        assert [answer.status for answer in client.answers] == [415]
        client.h2.send_data(refused, b"more")
        client.ask(MODELS)
        await client.flush()
        await client.read()
    assert [answer.status for answer in client.answers] == [415, 200]


async def test_http2_priorities_change_nothing(server: Server) -> None:
    on_itself = b"\x00\x00\x05\x02\x00\x00\x00\x00\x63\x00\x00\x00\x00\x10"
    async with connect(server) as connection:
        client = await begin(connection.reader, connection.writer)
        await client.flush(on_itself * 1500)
        client.ask(MODELS)
        await client.flush()
        await client.read()
    assert [answer.status for answer in client.answers] == [200]
