"""The texts of INPUT, one at a time: a .jsonl, .csv or .txt file, or a folder of text files."""

import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from api.batch_command.problems import CommandError, UsageError

KINDS = (".jsonl", ".csv", ".txt")
MAX_CELL_CHARS = 64 * 1024 * 1024  #: csv's own limit, 128 KiB, is less than a document
NOT_TEXT = "it is not UTF-8 text"


class Item(NamedTuple):
    """One text of the input, or why there is none."""

    row: int  #: from 0: of the output
    line: int  #: in the file, from 1; 0: the input is a folder
    file: str  #: path in the folder; empty: the input is a file
    text: str
    error: str = ""

    @property
    def place(self) -> str:
        return self.file or f"line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the texts are. `items()` may be called again and gives the same.

    A blank text is an item with an error, since no vector stands for it, or with `skip_empty` no item at all. A blank
    line of a .jsonl is never one.
    """

    path: Path
    field: str = "text"
    column: str | None = None
    skip_empty: bool = False

    def check(self) -> None:
        """Raises UsageError."""
        if not self.path.exists():
            raise UsageError(f"{self.path} does not exist")
        if not self.path.is_dir() and self.path.suffix.lower() not in KINDS:
            raise UsageError(f"{self.path} is none of {', '.join(KINDS)}, and no folder")

    def items(self) -> Iterator[Item]:
        """Raises CommandError when the input cannot be read."""
        try:
            yield from self._numbered()
        except OSError as exc:
            raise CommandError(f"{exc.filename or self.path} cannot be read: {exc.strerror}") from None

    def measure(self) -> tuple[int, str]:
        """How many items there are, and a fingerprint of them all."""
        digest = hashlib.sha256()
        count = 0
        for item in self.items():
            digest.update(f"{item.file}\0{item.error}\0".encode("utf-8", "replace"))
            digest.update(item.text.encode() + b"\0")
            count += 1
        return count, digest.hexdigest()

    def _numbered(self) -> Iterator[Item]:
        row = 0
        for line, file, text, error in self._texts():
            if not error and not text.strip():
                if self.skip_empty:
                    continue
                why = "the text is blank"
            else:
                why = error or ("" if _is_unicode(text) else NOT_TEXT)
            yield Item(row, line, file, "" if why else text, why)
            row += 1

    def _texts(self) -> Iterator[tuple[int, str, str, str]]:
        """Line, file, text, error."""
        if self.path.is_dir():
            return _of_folder(self.path)
        if self.path.suffix.lower() == ".csv":
            return _of_csv(self.path, self.column)
        if self.path.suffix.lower() == ".jsonl":
            return _of_jsonl(self.path, self.field)
        return ((line, "", text, error) for line, text, error in _lines(self.path))


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            data = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            try:
                yield number, data.decode().rstrip("\r\n"), ""
            except UnicodeDecodeError:
                yield number, "", NOT_TEXT


def _of_jsonl(path: Path, field: str) -> Iterator[tuple[int, str, str, str]]:
    for line, text, error in _lines(path):
        if error or text.strip():
            yield line, "", *(("", error) if error else _field(text, field))


def _field(line: str, field: str) -> tuple[str, str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return "", "it is not JSON"
    if not isinstance(value, dict):
        return "", "it is not a JSON object"
    if field not in value:
        return "", f"it has no field '{field}'"
    text = value[field]
    return (text, "") if isinstance(text, str) else ("", f"its field '{field}' is not a text")


def _of_csv(path: Path, column: str | None) -> Iterator[tuple[int, str, str, str]]:
    csv.field_size_limit(MAX_CELL_CHARS)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        try:
            at = _column_number(next(reader, []), column)
            for row in reader:
                if row:
                    cell, error = (row[at], "") if at < len(row) else ("", "it has too few columns")
                    yield reader.line_num, "", cell, error
        except csv.Error as exc:
            raise CommandError(f"{path}, line {reader.line_num}: {exc}") from None


def _column_number(names: list[str], column: str | None) -> int:
    if column is None and len(names) == 1:
        return 0
    wanted = "text" if column is None else column
    if wanted not in names:
        raise UsageError(f"the file has no column '{wanted}'; --column may be one of: {', '.join(names)}")
    return names.index(wanted)


def _of_folder(folder: Path) -> Iterator[tuple[int, str, str, str]]:
    """Every file in it and below, by path; hidden ones are left out."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        try:
            yield 0, name.as_posix(), path.read_text(encoding="utf-8-sig"), ""
        except UnicodeDecodeError:
            yield 0, name.as_posix(), "", NOT_TEXT


def _is_unicode(text: str) -> bool:
    """Half a character, as JSON's escapes can spell one, is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
