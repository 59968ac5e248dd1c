"""The input in windows: each is cut by the file alone, held in memory, and written as a whole."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from api.batches.file_store import FileStore
from api.batches.lines import Line
from api.batches.records import BatchRecord, TokenCounts
from api.errors import INVALID_REQUEST, ErrorAnswer
from api.protocol.batch_lines import LineInvalid, ParseBody, Parsed, parse_line

MANY = 1 << 30


class WindowSizes(NamedTuple):
    """What a window has at most, but for one line at least; and how many are in hand at a time."""

    lines: int
    strings: int  #: JSON strings, which texts to embed are; a line by itself has about 12
    bytes: int
    open: int


#: Texts are sorted by length within one. When a process dies, what it had not written of `open` windows runs again.
EMBEDDINGS = WindowSizes(lines=2048, strings=2048 * 14, bytes=512 * 1024, open=2)
#: a generation may take minutes, so few are lost with a process
GENERATIONS = WindowSizes(lines=16, strings=MANY, bytes=MANY, open=3)


class WindowLine(NamedTuple):
    number: int  #: in the file, from 1
    custom_id: str
    parsed: Parsed | None  #: None: it cannot be run
    error: ErrorAnswer | None = None  #: why


class Answered(NamedTuple):
    """What becomes of one line."""

    is_error: bool
    encode: Callable[[], bytes]  #: makes the line of the output or error file; called on a thread
    tokens: TokenCounts = TokenCounts()


class Window:
    """Its lines, and their answers as they come. Used on the event loop."""

    def __init__(self, index: int, lines: list[WindowLine], end: int, next_number: int) -> None:
        self.index = index
        self.lines = lines
        self.end = end  #: where the next window begins
        self.next_number = next_number
        self.answers: list[Answered | None] = [None] * len(lines)
        self.completed = 0
        self.failed = 0
        self.tokens = TokenCounts()

    def answer(self, place: int, answered: Answered) -> None:
        """The first answer of a line holds."""
        if self.answers[place] is not None:
            return
        self.answers[place] = answered
        self.failed += answered.is_error
        self.completed += not answered.is_error
        self.tokens = add_tokens(self.tokens, answered.tokens)

    def is_answered(self, place: int) -> bool:
        return self.answers[place] is not None


def add_tokens(one: TokenCounts, other: TokenCounts) -> TokenCounts:
    return TokenCounts(
        input=one.input + other.input,
        cached=one.cached + other.cached,
        output=one.output + other.output,
        reasoning=one.reasoning + other.reasoning,
    )


async def read_window(
    files: FileStore,
    batch: BatchRecord,
    parse: ParseBody,
    sizes: WindowSizes,
    max_line_bytes: int,
    index: int,
    offset: int,
    number: int,
) -> Window | None:
    """The window that begins at `offset` with line `number`; None: the file has no more. Raises FileMissing."""
    found = await files.read_lines(
        batch.input_file_id,
        offset,
        number,
        max_lines=sizes.lines,
        max_bytes=sizes.bytes,
        max_line_bytes=max_line_bytes,
    )
    if not found:
        return None
    kept = found[: _fitting(found, sizes.strings)]
    lines = await asyncio.to_thread(lambda: [_read(line, batch.endpoint, parse) for line in kept])
    return Window(index, lines, kept[-1].end, kept[-1].number + 1)


def _fitting(lines: list[Line], max_strings: int) -> int:
    """How many lines hold no more strings than that; one at least. Counted without reading them, so that no setting
    ever changes where windows end."""
    strings = 0
    for place, line in enumerate(lines):
        strings += (line.data or b"").count(b'"') // 2
        if strings > max_strings and place:
            return place
    return len(lines)


def _read(line: Line, endpoint: str, parse: ParseBody) -> WindowLine:
    """Validation has passed every line, but settings may be others since."""
    data = line.data or b""
    try:
        parsed = parse_line(data, endpoint, parse)
    except LineInvalid as exc:
        param = exc.param.removeprefix("body.") if exc.param else None
        error = ErrorAnswer(400, exc.message, INVALID_REQUEST, exc.code, param)
        return WindowLine(line.number, _custom_id(data), None, error)
    return WindowLine(line.number, parsed.custom_id, parsed.parsed)


def _custom_id(data: bytes) -> str:
    try:
        return str(msgspec.json.decode(data)["custom_id"])
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return ""
