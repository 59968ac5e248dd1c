"""HTTP/1 by hand: what is written onto a socket, and every answer that comes back, within a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

READ_LIMIT_BYTES = 2**20


class Script(NamedTuple):
    """One connection's worth of bytes."""

    pieces: tuple[bytes, ...]
    asked: tuple[tuple[str, str], ...]  #: method and path of each request that may be answered, in order
    least: int = 1  #: so many answers must come; fewer than `asked` where the request is not whole or not HTTP
    end: str = "stay"  #: then `stay` and read, `eof`: send no more, `abort`: reset, `glance`: read a little and reset
    pause_s: float = 0.0  #: between the pieces
    patience_s: float = 30.0  #: for the whole exchange


class Answer(NamedTuple):
    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: bytes


class Talk(NamedTuple):
    answers: list[Answer]
    has_hung: bool = False
    garbage: str = ""  #: what came is not HTTP


class NotHttp(Exception):
    """What came is no HTTP answer."""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_LIMIT_BYTES)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def talk(port: int, script: Script) -> Talk:
    """Play the script, reading while it writes: a server may answer before it has read everything."""
    answers: list[Answer] = []
    try:
        async with asyncio.timeout(script.patience_s), connected(port) as (reader, writer):
            writing = asyncio.create_task(_write(writer, script))
            try:
                if script.end == "glance":
                    await writing
                    await reader.read(200)
                elif script.end != "abort":
                    await _read(reader, script, answers)
                else:
                    await writing
            finally:
                writing.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await writing
    except TimeoutError:
        return Talk(answers, has_hung=True)
    except OSError:
        return Talk(answers)
    except NotHttp as exc:
        return Talk(answers, garbage=str(exc))
    return Talk(answers)


async def _write(writer: asyncio.StreamWriter, script: Script) -> None:
    with contextlib.suppress(OSError):
        for piece in script.pieces:
            writer.write(piece)
            await writer.drain()
            if script.pause_s:
                await asyncio.sleep(script.pause_s)
        if script.end == "eof":
            writer.write_eof()


async def _read(reader: asyncio.StreamReader, script: Script, answers: list[Answer]) -> None:
    """Until all that was asked for is answered, or the connection ends."""
    for method, path in script.asked:
        try:
            answers.append(await read_answer(reader, method, path))
        except asyncio.IncompleteReadError as exc:
            if exc.partial:
                raise NotHttp(f"an answer ends in its middle: {exc.partial[-100:]!r}") from None
            return
        except (ValueError, asyncio.LimitOverrunError) as exc:
            raise NotHttp(repr(exc)) from None


async def read_answer(reader: asyncio.StreamReader, method: str, path: str) -> Answer:
    """Raises IncompleteReadError, without bytes where the connection ended before the answer began."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, *_ = head[0].split(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(head[0])
        if int(status) >= 200:
            break
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = b"" if method == "HEAD" or status == "204" else await _read_body(reader, headers)
    return Answer(method, path, int(status), headers, body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return await reader.read()
    chunks = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(chunks)
