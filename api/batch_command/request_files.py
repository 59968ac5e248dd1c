"""The input of a batch as the Batch API wants it: a JSONL file with a request for each text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from api.batch_command.inputs import Item

MAX_LINES = 50_000  #: of one batch, OpenAI's limit
MAX_BYTES = 200_000_000


class RequestFile(NamedTuple):
    path: Path
    first: int  #: row of its first text
    last: int
    texts: int


class Limits(NamedTuple):
    lines: int = MAX_LINES
    bytes: int = MAX_BYTES


def request_line(item: Item, model: str, dimensions: int | None) -> bytes:
    """Its custom_id is the item's row. base64 is a third of the numbers spelled out."""
    body: dict[str, Any] = {"model": model, "input": item.text, "encoding_format": "base64"}
    if dimensions is not None:
        body["dimensions"] = dimensions
    line = {"custom_id": str(item.row), "method": "POST", "url": "/v1/embeddings", "body": body}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


class RequestFiles:
    """Writes one file after the other, all at `path`: each is to be used before the next is asked for.

    A None among the items ends a file.
    """

    def __init__(
        self, items: Iterator[Item | None], path: Path, model: str, dimensions: int | None, limits: Limits
    ) -> None:
        self._items = items
        self._path = path
        self._model = model
        self._dimensions = dimensions
        self._limits = limits
        self._left: list[tuple[Item, bytes]] = []  #: what did not fit any more

    def write_next(self) -> RequestFile | None:
        """None: there is nothing left to ask for."""
        first = last = texts = 0
        with self._path.open("wb") as out:
            for item, line in self._of_one_file():
                out.write(line)
                first, last, texts = (first if texts else item.row), item.row, texts + 1
        return RequestFile(self._path, first, last, texts) if texts else None

    def _of_one_file(self) -> Iterator[tuple[Item, bytes]]:
        texts = size = 0
        while True:
            entry = self._left.pop() if self._left else self._next(texts > 0)
            if entry is None:
                return
            if texts == self._limits.lines or (texts and size + len(entry[1]) > self._limits.bytes):
                self._left.append(entry)
                return
            texts, size = texts + 1, size + len(entry[1])
            yield entry

    def _next(self, has_some: bool) -> tuple[Item, bytes] | None:
        """None: the file ends here."""
        for item in self._items:
            if item is not None:
                return item, request_line(item, self._model, self._dimensions)
            if has_some:
                return None
        return None
