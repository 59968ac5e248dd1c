"""Request bodies: size limit, content type and encoding, JSON."""

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from quart import Request
from quart.wrappers.request import Body
from werkzeug.exceptions import RequestEntityTooLarge

from api.errors import BodyTooLarge, UnsupportedMediaType
from api.protocol.fields import InvalidRequest, kind

OFF_LOOP_BYTES = 256 * 1024  #: parsed on a thread from here on: 5 MB of small messages take 70 ms
JSON_TYPES = re.compile(r"(application|text)/(json|[\w.+-]+\+json)")
BOM = b"\xef\xbb\xbf"
#: zlib's window bits: 16 + 15 reads a gzip header; deflate is a zlib stream by RFC 9110 and a raw one from some clients
GZIP_BITS = 31
DEFLATE_BITS = (15, -15)
PIECE_BYTES = 64 * 1024  #: packed or unpacked, at a time

Parsed = TypeVar("Parsed")


class BoundedBody(Body):
    """Gives up what was read as soon as the body is found too large, and keeps nothing of what follows."""

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        super().__init__(expected_content_length, max_content_length)
        self._complete = asyncio.Event()
        self._has_data = asyncio.Event()

    def append(self, data: bytes) -> None:
        super().append(data)
        if self._must_raise is not None:
            self._data.clear()


class BoundedRequest(Request):
    body_class = BoundedBody


async def read_json(
    request: Request,
    limit_bytes: int,
    parse: Callable[[dict[str, Any]], Parsed],
    is_slow: Callable[[bytes], bool] = lambda _: False,
) -> Parsed:
    """The body's JSON object through `parse`, on a thread when the body is large, packed, or `is_slow`.

    Raises UnsupportedMediaType, BodyTooLarge, InvalidRequest, and the framework's RequestTimeout.
    """
    check_content_type(request.content_type)
    encoding = read_encoding(request.headers.get("Content-Encoding"))
    data = await read_bytes(request, limit_bytes)
    if len(data) <= OFF_LOOP_BYTES and encoding is None and not is_slow(data):
        return parse(decode_object(data))
    return await asyncio.to_thread(lambda: parse(decode_object(inflate(data, encoding, limit_bytes))))


async def read_bytes(request: Request, limit_bytes: int) -> bytes:
    """The body as it came. Raises BodyTooLarge, and the framework's RequestTimeout."""
    try:
        return await request.get_data(cache=False, as_text=False, parse_form_data=False)
    except RequestEntityTooLarge:
        raise BodyTooLarge(limit_bytes) from None


def check_content_type(content_type: str | None) -> None:
    """JSON with any parameters, in any case; or none named. curl's default, a form, is refused with a hint."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type and not JSON_TYPES.fullmatch(media_type):
        raise UnsupportedMediaType(f"The content type is '{media_type[:100]}'; send 'Content-Type: application/json'.")


def read_encoding(header: str | None) -> str | None:
    """`gzip`, `deflate` or None."""
    encoding = (header or "").strip().lower().removeprefix("x-")
    if encoding in ("", "identity"):
        return None
    if encoding not in ("gzip", "deflate"):
        raise UnsupportedMediaType("This content encoding is not supported; send gzip, deflate, or the body as it is.")
    return encoding


def inflate(data: bytes, encoding: str | None, limit_bytes: int) -> bytes:
    """Unpack at most `limit_bytes`. Raises BodyTooLarge, InvalidRequest."""
    if encoding is None:
        return data
    for bits in (GZIP_BITS,) if encoding == "gzip" else DEFLATE_BITS:
        size = unpacked_bytes(data, bits, limit_bytes)
        if size is not None:
            return zlib.decompress(data, bits, max(size, 1))
    raise InvalidRequest(f"The request body is not whole, valid {encoding} data.")


def unpacked_bytes(data: bytes, bits: int, limit_bytes: int) -> int | None:
    """Counted piece by piece, so that what is too large takes time only. None: not whole, valid data.

    Raises BodyTooLarge.
    """
    unpacker = zlib.decompressobj(bits)
    size = 0
    try:
        for start in range(0, len(data), PIECE_BYTES):
            packed = data[start : start + PIECE_BYTES]
            while packed and not unpacker.eof:
                size += len(unpacker.decompress(packed, PIECE_BYTES))
                packed = unpacker.unconsumed_tail
                if size > limit_bytes:
                    raise BodyTooLarge(limit_bytes, unpacked=True)
            if unpacker.eof and (unpacker.unused_data or start + PIECE_BYTES < len(data)):
                return None
        size += len(unpacker.flush())
    except zlib.error:
        return None
    if size > limit_bytes:
        raise BodyTooLarge(limit_bytes, unpacked=True)
    return size if unpacker.eof else None


def decode_object(data: bytes) -> dict[str, Any]:
    """UTF-8 JSON (RFC 8259), with or without a byte order mark. Raises InvalidRequest for anything but one object."""
    try:
        value = msgspec.json.decode(data.removeprefix(BOM))
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"The request body is not valid JSON in UTF-8: {exc}.") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"The request body must be a JSON object, not {kind(value)}.")
    return value
