"""Server-sent events: frames, heartbeats, and errors after the head."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import msgspec

from api.errors import describe, is_unexpected
from api.job_types import Event
from api.protocol.answers import StreamFormat
from tasks.contracts import ChoiceFinished, Finished, Progress

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx holds a stream back without the second
DONE = b"data: [DONE]\n\n"

Events = AsyncGenerator[Event]

READER = "lis.reader"  #: scope key of a generation's EventReader

#: line ends to clients that use Unicode's rules. JSON leaves these three as they are, and escapes those below U+0020
LINE_ENDS = (("\u2028", rb"\u2028"), ("\u2029", rb"\u2029"), ("\u0085", rb"\u0085"))


class Beats(NamedTuple):
    """Longest silence before a heartbeat, in seconds."""

    prefill_s: float = 1.0  #: a Stop button waits for the next data chunk
    decode_s: float = 5.0


BEATS = Beats()


def frame(data: dict[str, Any], is_named: bool = False) -> bytes:
    """`is_named`: the event's name is the data's `type`."""
    encoded = msgspec.json.encode(data)
    for character, escaped in LINE_ENDS:
        encoded = encoded.replace(character.encode(), escaped)
    name = b"event: " + str(data.get("type", "error")).encode() + b"\n" if is_named else b""
    return name + b"data: " + encoded + b"\n\n"


def comment(text: str) -> bytes:
    return b": " + text.encode() + b"\n\n"


class EventReader:
    """Reads events with a deadline. A read that is not done by then goes on, and the next call has its result."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.has_failed = False  #: the stream made of it ends with an error
        self._pending: asyncio.Future[Event] | None = None

    async def read(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None when none came in time. Raises StopAsyncIteration, and what the events raise."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._events))
        await asyncio.wait({self._pending}, timeout=timeout_s)
        if not self._pending.done():
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    async def aclose(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.wait({self._pending})
            if not self._pending.cancelled():
                self._pending.exception()  # seen: nobody waits for it any more
        await self._events.aclose()


async def stream_answer(
    reader: EventReader, answer: StreamFormat, queue_ms: float, request_id: str, beats: Beats = BEATS
) -> AsyncGenerator[bytes]:
    """The whole event stream of one running generation. An error is its last frame, and then no `[DONE]`.

    Whoever calls it closes the reader: this generator may be dropped at any `yield`.
    """
    try:
        if opening := answer.opening():
            yield _encode(opening, answer)
        async for data in _frames(reader, answer, queue_ms, beats):
            yield data
    except Exception as exc:
        if is_unexpected(exc):
            log.exception("stream failed", extra={"request_id": request_id})
        reader.has_failed = True
        yield _encode(answer.failure(describe(exc).body()), answer)
    else:
        if answer.has_done:
            yield DONE


async def _frames(reader: EventReader, answer: StreamFormat, queue_ms: float, beats: Beats) -> AsyncGenerator[bytes]:
    """Chunks, with heartbeats in the silences: short ones while a prompt is read, which may be so between choices."""
    silence_s = beats.prefill_s
    sent_s = time.monotonic()
    progress: Progress | None = None
    while True:
        event = await reader.read(max(0.0, sent_s + silence_s - time.monotonic()))
        if isinstance(event, Finished):
            yield _encode(answer.closing(event, queue_ms), answer)
            return
        if event is None or isinstance(event, Progress):
            if event is not None:
                progress, silence_s = event, beats.prefill_s
            if time.monotonic() >= sent_s + silence_s:
                note = comment(f"prefill {progress.done}/{progress.total}") if progress else b""
                yield note + _encode([answer.heartbeat()], answer)
                sent_s = time.monotonic()
            continue
        progress = None
        silence_s = beats.prefill_s if isinstance(event, ChoiceFinished) else beats.decode_s
        if chunks := answer.part(event):
            yield _encode(chunks, answer)
            sent_s = time.monotonic()


def _encode(chunks: list[dict[str, Any]], answer: StreamFormat) -> bytes:
    return b"".join(frame(chunk, answer.names_events) for chunk in chunks)
