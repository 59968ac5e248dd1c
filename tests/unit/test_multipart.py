"""Forms, whatever pieces they come in."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.errors import BodyTooLarge
from api.multipart import MAX_FIELD_BYTES, MAX_PARTS, Form, read_form
from api.protocol.fields import InvalidRequest
from api.protocol.files import read_upload

FIELD = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\nContent-Type: text/x\r\n\r\n%s\r\n'
END = b"--b--\r\n"
TRICKY = b"\r\n--\r\n--bb\n\r--bx\r\r\n\n-b\r\n--c\r\n" * 5000 + b"last\r"


class Request:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.body = self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


async def parsed(pieces: list[bytes], limit_bytes: int = 10**9) -> tuple[Form, bytes]:
    written = bytearray()

    async def write(data: bytes) -> None:
        written.extend(data)

    request: Any = Request(pieces)
    return await read_form(request, b"b", "file", write, limit_bytes, 5.0), bytes(written)


@pytest.mark.parametrize("seed", range(12))
async def test_any_cut_gives_the_same_form(seed: int) -> None:
    chance = random.Random(seed)
    content = TRICKY if seed % 2 else bytes(chance.randrange(256) for _ in range(150_000))
    data = b"preamble\r\n" + FIELD % (b"purpose", b"batch") + FILE % (b"file", b"a.jsonl", content)
    data += FILE % (b"other", b"b", b"ignored") + FIELD % (b"late", "ä".encode()) + END + b"epilogue"
    largest = chance.choice([3, 50, 5000, 200_000])
    pieces, at = [], 0
    while at < len(data):
        size = chance.randint(1, largest)
        pieces.append(data[at : at + size])
        at += size
    form, written = await parsed(pieces)
    assert form == Form({"purpose": "batch", "late": "ä"}, "a.jsonl")
    assert written == content


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nothing of a form",
        END,
        FIELD % (b"purpose", b"batch"),
        FILE % (b"file", b"a", b"x"),
        b"--b\r\nContent-Type: text/x\r\n\r\nno name\r\n" + END,
        FIELD % (b"a", b"\xff\xfe") + END,
        FIELD % (b"file", b"no file name") + END,
        FIELD % (b"a", b"x" * (MAX_FIELD_BYTES + 1)) + END,
        b'--b\r\nContent-Disposition: form-data; filename="x"\r\n\r\nno name\r\n' + END,
    ],
)
async def test_what_is_no_whole_form_is_the_clients_fault(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        form, _ = await parsed([data])
        read_upload(form.values, form.filename)


@pytest.mark.parametrize(
    "data",
    [
        b"--b\r\nX: " + b"x" * 1_000_000,
        b"x" * 1_000_000,
        FILE % (b"file", b"a", b"x") + END + b"x" * 1_000_000,
        FIELD % (b"a", b"") * (MAX_PARTS + 1) + END,
    ],
)
async def test_what_never_becomes_a_part_is_not_held(data: bytes) -> None:
    with pytest.raises(BodyTooLarge):
        await parsed([data])


async def test_other_files_count_too() -> None:
    with pytest.raises(BodyTooLarge):
        await parsed([FILE % (b"other", b"a", b"x" * 5000) + END], limit_bytes=4000)
