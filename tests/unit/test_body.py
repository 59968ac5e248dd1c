"""Request bodies: what is taken for JSON, and what is refused."""

import gzip
import json
import tracemalloc
import zlib
from typing import Any

import pytest

from api.body import check_content_type, decode_object, inflate, read_encoding
from api.errors import BodyTooLarge, UnsupportedMediaType
from api.protocol.fields import InvalidRequest

LIMIT = 1024


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON;charset=UTF-8",
        "application/vnd.api+json",
        "text/json",
    ],
)
def test_json_content_type(content_type: str | None) -> None:
    check_content_type(content_type)


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "application/jsonx", "json"],
)
def test_other_content_type_is_refused_with_a_hint(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="Content-Type: application/json"):
        check_content_type(content_type)


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        *[(plain, None) for plain in (None, "", "identity")],
        *[(header, "gzip") for header in ("gzip", "GZIP", " x-gzip ")],
        ("deflate", "deflate"),
    ],
)
def test_encoding(header: str | None, encoding: str | None) -> None:
    assert read_encoding(header) == encoding


@pytest.mark.parametrize("header", ["br", "zstd", "gzip, gzip", "compress", "\u00ff"])
def test_other_encoding_is_refused(header: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        read_encoding(header)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [(gzip.compress(b"{}"), "gzip"), (zlib.compress(b"{}"), "deflate"), (raw_deflate(b"{}"), "deflate"), (b"{}", None)],
)
def test_inflate(packed: bytes, encoding: str | None) -> None:
    assert inflate(packed, encoding, LIMIT) == b"{}"


def test_inflate_up_to_the_limit() -> None:
    assert len(inflate(gzip.compress(b"a" * LIMIT), "gzip", LIMIT)) == LIMIT


@pytest.mark.parametrize("size", [LIMIT + 1, 100 * 1024 * 1024])
def test_unpacked_size_is_bounded(size: int) -> None:
    with pytest.raises(BodyTooLarge, match=str(LIMIT)):
        inflate(gzip.compress(b"a" * size), "gzip", LIMIT)


def test_what_unpacks_to_too_much_takes_no_memory() -> None:
    packed = gzip.compress(b"a" * 64 * 2**20)
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        inflate(packed, "gzip", 32 * 2**20)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**20


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "packed",
    [b"", b"{}", gzip.compress(b"{}")[:-3], zlib.compress(b"{}")[:-3], gzip.compress(b"{}") + b"junk"],
)
def test_data_that_is_not_whole_is_refused(packed: bytes, encoding: str) -> None:
    with pytest.raises(InvalidRequest, match=encoding):
        inflate(packed, encoding, LIMIT)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"{}", {}),
        (b' \n{"a": 1}\r\n', {"a": 1}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        ('{"a": "é"}'.encode(), {"a": "é"}),
        (rb'{"a": "\u0000"}', {"a": "\0"}),
    ],
)
def test_decode(data: bytes, value: dict[str, Any]) -> None:
    assert decode_object(data) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  ",
        b"{",
        b"{}x",
        b"{}{}",
        b"[]",
        b'"x"',
        b"5",
        b"null",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\xbd"}',
        '{"a": "é"}'.encode("latin-1"),
        '{"a": 1}'.encode("utf-16"),
        gzip.compress(b"{}"),
        rb'{"a": "emoji \ud83d"}',
        rb'{"a": "\ude00"}',
        rb'{"a": "\ud83d\ud83d"}',
        rb'{"\ud83d": 1}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
        b'{"a": "line\nbreak"}',
    ],
)
def test_anything_but_one_object_is_a_clear_400(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_object(data)
    assert caught.value.message
    for inside in ("Error", "Traceback", "codec", "msgspec", "x8b"):
        assert inside not in caught.value.message


def test_what_python_writes_is_read() -> None:
    value = {"text": "\u2028 é 😀", "numbers": [1.5, -0.0, 2**63], "nothing": None}
    assert decode_object(json.dumps(value).encode()) == value
