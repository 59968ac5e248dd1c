"""Forms with a file, read as they come: the file is handed on piece by piece, and never held."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from quart import Request
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Event, Field, File, MultipartDecoder, NeedData

from api.errors import BodyTooLarge, UnsupportedMediaType
from api.protocol.fields import InvalidRequest

MULTIPART = "multipart/form-data"
PIECE_BYTES = 64 * 1024  #: parsed at a time
BUFFER_BYTES = 4 * PIECE_BYTES  #: of a piece, and what was left of the one before
MAX_FIELD_BYTES = 64 * 1024
MAX_PARTS = 32

Write = Callable[[bytes], Awaitable[None]]


class Form(NamedTuple):
    values: dict[str, str]
    filename: str | None  #: of the file; None: there was none


async def read_form(
    request: Request, boundary: bytes, file_name: str, write: Write, limit_bytes: int, idle_s: float
) -> Form:
    """All fields, and the file that is called `file_name` through `write`.

    `limit_bytes` is of the whole body; a client that sends nothing for `idle_s` is given up. Raises
    InvalidRequest, BodyTooLarge, RequestTimeout, and what `write` raises.
    """
    reader = FormReader(boundary, file_name, write)
    size = 0
    try:
        async for data in _timed(request.body.__aiter__(), idle_s):
            size += len(data)
            if size > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            for at in range(0, len(data), PIECE_BYTES):
                await reader.feed(data[at : at + PIECE_BYTES])
        await reader.feed(None)
    except RequestEntityTooLarge:
        raise BodyTooLarge(limit_bytes) from None
    except ValueError:  # UnicodeDecodeError too
        raise InvalidRequest("The request body is not whole, valid multipart/form-data.") from None
    return Form(reader.values, reader.filename)


def boundary_of(request: Request) -> bytes:
    """What separates the parts of its form. Raises UnsupportedMediaType, InvalidRequest."""
    media_type, options = parse_options_header(request.content_type or "")
    if media_type.lower() != MULTIPART:
        raise UnsupportedMediaType(f"Send a form with the file in it, as '{MULTIPART}'.")
    boundary = options.get("boundary", "")
    if not boundary or not boundary.isascii():
        raise InvalidRequest("The content type has no boundary.")
    return boundary.encode()


async def _timed(body: AsyncIterator[bytes], idle_s: float) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(idle_s):
                data = await anext(body)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RequestTimeout from None
        yield data


class FormReader:
    """Takes the body's pieces in order, then None."""

    def __init__(self, boundary: bytes, file_name: str, write: Write) -> None:
        self.values: dict[str, str] = {}
        self.filename: str | None = None
        self._decoder = MultipartDecoder(boundary, BUFFER_BYTES, max_parts=MAX_PARTS)
        self._file_name = file_name
        self._write = write
        self._part: Field | File | None = None
        self._value = bytearray()

    async def feed(self, data: bytes | None) -> None:
        """Raises ValueError: it is no form, or not whole; RequestEntityTooLarge; InvalidRequest."""
        self._decoder.receive_data(data)
        while not isinstance(event := self._decoder.next_event(), NeedData | Epilogue):
            await self._take(event)

    async def _take(self, event: Event) -> None:
        if isinstance(event, Field | File):
            self._begin(event)
        elif isinstance(event, Data) and self._part is not None:
            if isinstance(self._part, File):
                if self._part.name == self._file_name and event.data:
                    await self._write(event.data)
                return
            self._value += event.data
            if len(self._value) > MAX_FIELD_BYTES:
                raise InvalidRequest(f"'{self._part.name[:100]}' is too long.", self._part.name[:100])
            if not event.more_data:
                self.values[self._part.name] = self._value.decode()

    def _begin(self, part: Field | File) -> None:
        self._part = part
        self._value.clear()
        if not isinstance(part.name, str):
            raise InvalidRequest("A part of the form has no name.")
        if part.name != self._file_name:
            return
        if isinstance(part, Field):
            raise InvalidRequest(f"'{part.name}' must be a file, with a file name.", part.name)
        if self.filename is not None:
            raise InvalidRequest(f"'{part.name}' is there twice; send one file at a time.", part.name)
        self.filename = part.filename
