"""Lines of an input file: how they are cut, and what one must say."""

import io
import json
from typing import Any

import pytest

from api.batches.lines import CHUNK_BYTES, Line, read_lines
from api.protocol.batch_lines import CHAT, COMPLETIONS, EMBEDDINGS, LineInvalid, body_parser, parse_line

MAX = 1000


def lines_of(data: bytes, max_line_bytes: int = MAX) -> list[Line]:
    return list(read_lines(io.BytesIO(data), max_line_bytes))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_line_ends_byte_order_marks_and_blank_lines_are_no_part_of_a_line(
    end: bytes, last: bytes, start: bytes
) -> None:
    data = start + end.join([b"one", b"", b"  ", b"four"]) + last
    assert [(line.number, line.data) for line in lines_of(data)] == [(1, b"one"), (4, b"four")]


@pytest.mark.parametrize("length", [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_line_may_be_longer_than_what_is_read_at_a_time(length: int) -> None:
    data = b"a" * length + b"\nsecond"
    assert [line.data for line in lines_of(data, 4 * CHUNK_BYTES)] == [b"a" * length, b"second"]


@pytest.mark.parametrize("length", [MAX + 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
def test_a_line_that_is_too_long_is_told_and_the_next_one_is_read(length: int) -> None:
    found = lines_of(b"first\n" + b"a" * length + b"\nthird\n")
    assert [(line.number, line.data) for line in found] == [(1, b"first"), (2, None), (3, b"third")]


def test_reading_goes_on_at_the_end_of_any_line() -> None:
    data = b"\xef\xbb\xbfone\r\n\nthree\n" + b"x" * (MAX + 5) + b"\nfive"
    whole = lines_of(data)
    for index, line in enumerate(whole):
        file = io.BytesIO(data)
        file.seek(line.end)
        assert list(read_lines(file, MAX, line.end, line.number + 1)) == whole[index + 1 :]


GOOD: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"model": "m", "input": "text"},
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
}


def parse(endpoint: str = EMBEDDINGS, **changes: Any) -> str:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": GOOD[endpoint]} | changes
    line = {name: value for name, value in line.items() if value is not ...}
    return parse_line(json.dumps(line).encode(), endpoint, body_parser(endpoint, max_inputs=2, max_n=2)).model


@pytest.mark.parametrize("endpoint", GOOD)
def test_a_good_line_is_read(endpoint: str) -> None:
    assert parse(endpoint) == "m"
    assert parse(endpoint, extra="ignored") == "m"


BAD = [
    ({"custom_id": ...}, "missing_required_parameter", "custom_id"),
    ({"custom_id": ""}, "missing_required_parameter", "custom_id"),
    ({"custom_id": 5}, "invalid_request", "custom_id"),
    ({"method": ...}, "missing_required_parameter", "method"),
    ({"method": "GET"}, "invalid_method", "method"),
    ({"url": ...}, "missing_required_parameter", "url"),
    ({"url": "/v1/nope"}, "invalid_url", "url"),
    ({"url": CHAT}, "invalid_url", "url"),
    ({"body": ...}, "missing_required_parameter", "body"),
    ({"body": []}, "invalid_request", "body"),
    ({"body": {"model": "m"}}, "invalid_request", "body.input"),
    ({"body": {"input": "x"}}, "invalid_request", "body.model"),
    ({"body": {"model": "m", "input": ["a", "b", "c"]}}, "invalid_request", "body.input"),
    ({"body": {"model": "m", "input": ["a", ""]}}, "invalid_request", "body.input[1]"),
    ({"body": {"model": "m", "input": "x", "stream": True}}, "invalid_request", "body.stream"),
]


@pytest.mark.parametrize(("changes", "code", "param"), BAD)
def test_what_is_wrong_is_named(changes: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(LineInvalid) as info:
        parse(**changes)
    assert (info.value.code, info.value.param) == (code, param)


@pytest.mark.parametrize("data", [b"{", b"[]", b'"text"', b"\xff\xfe{}", b"nan", b"[" * 100_000])
def test_a_line_that_is_no_json_object_is_told(data: bytes) -> None:
    with pytest.raises(LineInvalid) as info:
        parse_line(data, CHAT, body_parser(CHAT, max_inputs=2, max_n=2))
    assert info.value.code == "invalid_json_line"
