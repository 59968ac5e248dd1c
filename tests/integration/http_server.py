"""The HTTP API with an in-memory queue on a real server, and raw connections to it."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypercorn.asyncio import serve
from hypercorn.config import Config
from quart import Quart

from api import http_protocol
from api.app import create_app
from tasks.settings import load_settings
from tests.unit.fake_jobs import CHAT, EMBED, FakeJobs

DEADLINE_S = 10
MIB = 1024 * 1024
CHAT_BODY = {"model": CHAT, "messages": [{"role": "user", "content": "hi"}]}
EMBED_BODY = {"model": EMBED, "input": "hi"}


class Server(NamedTuple):
    app: Quart
    jobs: FakeJobs
    port: int


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert list(error) == ["message", "type", "param", "code"]
        return error


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: Any, headers: str = "") -> None:
        data = json.dumps(body).encode()
        await self.send(head("POST", path, f"Content-Length: {len(data)}\r\n{headers}") + data)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def answer(self, has_body: bool = True) -> Answer:
        status, headers = await self.head()
        size = int(headers.get("content-length", "0")) if has_body else 0
        return Answer(status, headers, await self.reader.readexactly(size))

    async def until(self, text: bytes) -> bytes:
        return await self.reader.readuntil(text)

    def abort(self) -> None:
        """Gone without a word: a reset, not an orderly end."""
        self.writer.transport.abort()


def head(method: str, path: str, headers: str = "", version: str = "1.1") -> bytes:
    json_type = "Content-Type: application/json\r\n" if method == "POST" else ""
    return f"{method} {path} HTTP/{version}\r\nHost: x\r\n{json_type}{headers}\r\n".encode("latin-1")


@asynccontextmanager
async def running_server() -> AsyncIterator[Server]:
    """On a port of the system's choosing, in this very loop; a test that takes too long is cancelled."""
    http_protocol.install()
    jobs = FakeJobs()
    app = create_app(load_settings(env_file=Path(os.devnull)), jobs)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = Config()
        config.bind = [f"fd://{listener.fileno()}"]
        config.graceful_timeout = 0.1
        stop = asyncio.Event()
        task = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))
        try:
            async with asyncio.timeout(3 * DEADLINE_S):
                yield Server(app, jobs, listener.getsockname()[1])
        finally:
            stop.set()
            await task
            listener.detach()  # the server has closed its descriptor


@asynccontextmanager
async def connect(server: Server, read_limit: int = 2**16) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=read_limit)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def assert_alive(server: Server) -> None:
    async with connect(server) as connection:
        await connection.send(head("GET", "/v1/models"))
        assert (await connection.answer()).status == 200
