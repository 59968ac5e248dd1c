"""A small asyncio client for soaks: one connection per request, which can be left at any moment."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from tests.stack import Stack

HANG_S = 60.0  #: an answer that takes longer counts as one that never comes


@dataclass
class Answer:
    """What one client saw of one request."""

    kind: str
    status: int = 0  #: 0: no head came
    id: str = ""  #: `x-request-id`; empty when no head came
    text: str = ""
    code: str | None = None  #: of the error, whether it came as a status or as the last frame of a stream
    is_whole: bool = False  #: a body that is whole, or a stream with `[DONE]`
    has_left: bool = False  #: the client closed the connection before the end
    broken: str = ""  #: the connection ended without an answer, or the answer never came
    took_s: float = 0.0
    head_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)  #: when each text of a stream came, since the request


async def ask(
    stack: Stack,
    kind: str,
    path: str,
    body: dict[str, Any],
    leave_after_s: float | None = None,
    leave_after_chunks: int | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send one request and read its answer, unless it is to be left before."""
    answer = Answer(kind)
    began_s = time.monotonic()
    limit_s = HANG_S if leave_after_s is None else leave_after_s
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", stack.port, limit=1 << 20)
            writer.write(_request(stack, path, body, headers or {}))
            await writer.drain()
            await _read(reader, answer, began_s, leave_after_chunks)
    except TimeoutError:
        if leave_after_s is None:
            answer.broken = f"no end within {HANG_S:.0f} s"
        else:
            answer.has_left = True
    except (OSError, ValueError, asyncio.IncompleteReadError) as exc:
        answer.broken = type(exc).__name__
    finally:
        answer.took_s = time.monotonic() - began_s
        if writer is not None:
            writer.close()
    return answer


def _request(stack: Stack, path: str, body: dict[str, Any], headers: dict[str, str]) -> bytes:
    data = json.dumps(body).encode()
    given = {"Host": "x", "Authorization": f"Bearer {stack.key}", "Content-Type": "application/json", **headers}
    given |= {"Content-Length": str(len(data)), "Connection": "close"}
    return "\r\n".join([f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items()), "", ""]).encode() + data


async def _read(reader: asyncio.StreamReader, answer: Answer, began_s: float, leave_after_chunks: int | None) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    lines = head.split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    answer.head_s = time.monotonic() - began_s
    answer.status, answer.id = int(lines[0].split()[1]), fields.get("x-request-id", "")
    if not fields.get("content-type", "").startswith("text/event-stream"):
        data = await reader.readexactly(int(fields["content-length"])) if "content-length" in fields else b"{}"
        _take_body(answer, json.loads(data))
        return
    async for line in reader:  # of a chunked body: its size lines do not begin with `data: `
        if line.startswith(b"data: "):
            _take_line(answer, line[len(b"data: ") :].strip(), began_s)
            if leave_after_chunks is not None and len(answer.chunk_s) >= leave_after_chunks:
                answer.has_left = True
                return
        if answer.is_whole or answer.code:
            return
    answer.broken = "the stream ended without an end"


def _take_body(answer: Answer, body: dict[str, Any]) -> None:
    if "error" in body:
        answer.code = body["error"]["code"]
        return
    answer.is_whole = True
    if body.get("choices"):
        choice = body["choices"][0]
        answer.text = choice["message"]["content"] if "message" in choice else choice["text"]


def _take_line(answer: Answer, data: bytes, began_s: float) -> None:
    if data == b"[DONE]":
        answer.is_whole = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        answer.code = chunk["error"]["code"]
        return
    for choice in chunk["choices"]:
        if text := (choice["delta"].get("content") if "delta" in choice else choice["text"]):
            answer.text += text
            answer.chunk_s.append(time.monotonic() - began_s)
