"""The lines of a batch's output and error files."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Answer(NamedTuple):
    row: int  #: the item's
    embedding: Any  #: as the API gave it; None: it failed
    error: str


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines. Only a line feed ends one: JSON may contain what Unicode counts as line ends."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest


def parse_answer(line: bytes) -> Answer | None:
    """None: the line is not one of ours."""
    try:
        value = json.loads(line)
        row = int(value["custom_id"])
    except (ValueError, KeyError, TypeError):
        return None
    response = value.get("response") or {}
    body = response.get("body") or {}
    if value.get("error"):
        return Answer(row, None, _message(value["error"]))
    if response.get("status_code") != 200:
        return Answer(row, None, _message(body.get("error") or {}))
    try:
        return Answer(row, body["data"][0]["embedding"], "")
    except (KeyError, IndexError, TypeError):
        return Answer(row, None, "the server's answer has no vector")


def _message(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or "the server gives no reason")
    return str(error)
