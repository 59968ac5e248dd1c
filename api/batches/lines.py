"""Lines of a file as they come, whatever its size."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BOM = b"\xef\xbb\xbf"
CHUNK_BYTES = 1024 * 1024


class Line(NamedTuple):
    """One line that is not blank."""

    number: int  #: from 1; blank lines count
    offset: int  #: where it begins, in bytes
    end: int  #: where the next one begins
    data: bytes | None  #: without its end; None: it is too long


def read_lines(file: BinaryIO, max_line_bytes: int, offset: int = 0, number: int = 1) -> Iterator[Line]:
    """From where the file stands: at `offset`, the beginning of line `number`.

    Holds one line and one chunk at most. A byte order mark at the file's beginning is no part of its first line.
    """
    pending = bytearray()
    start = offset  # of the line that is pending
    skipped = 0  # bytes of it that were dropped: it is too long
    while chunk := file.read(CHUNK_BYTES):
        at = 0
        while (newline := chunk.find(b"\n", at)) >= 0:
            pending += chunk[at:newline]
            at = newline + 1
            end = start + skipped + len(pending) + 1
            if (line := _line(pending, number, start, end, skipped, max_line_bytes)) is not None:
                yield line
            pending.clear()
            start, skipped, number = end, 0, number + 1
        pending += chunk[at:]
        if skipped or len(pending) > max_line_bytes + len(BOM) + 1:
            skipped += len(pending)
            pending.clear()
    end = start + skipped + len(pending)
    if end > start and (line := _line(pending, number, start, end, skipped, max_line_bytes)) is not None:
        yield line


def _line(data: bytearray, number: int, start: int, end: int, skipped: int, max_line_bytes: int) -> Line | None:
    if skipped:
        return Line(number, start, end, None)
    text = bytes(data).removeprefix(BOM) if start == 0 else bytes(data)
    text = text.removesuffix(b"\r")
    if not text.strip():
        return None
    return Line(number, start, end, None if len(text) > max_line_bytes else text)
