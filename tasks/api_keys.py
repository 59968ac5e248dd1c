"""API keys as text: what LIS_API_KEY and the lines of LIS_API_KEYS_FILE may be. No key is ever part of a message."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
NAME_RULE = "a name has up to 64 ASCII letters, digits, '_', '.', '@' and '-' and begins with a letter or a digit"
KEY_RULE = "a key must be printable ASCII without blanks: it travels in an HTTP header"


class NamedKey(NamedTuple):
    """`place` is where it stands, for messages: `entry 2`, `line 7`."""

    name: str
    key: str
    place: str


def parse_value(value: str) -> list[NamedKey]:
    """The keys of LIS_API_KEY. Raises ValueError.

    Without a comma it is one key as it stands, with whatever colons it has, and without a name. With a comma it is a
    list of `name:key`; a comma at the end makes a list of a single one.
    """
    if "," not in value:
        if value and not is_key(value):
            raise ValueError("it must be printable ASCII without blanks: it travels in an HTTP header")
        return [NamedKey("", value, "the key")] if value else []
    entries = [NamedKey("", entry.strip(), f"entry {number}") for number, entry in enumerate(value.split(","), 1)]
    keys, problems = [], []
    for entry in entries:
        try:
            if entry.key:
                keys.append(_named(entry))
        except ValueError as exc:
            problems.append(str(exc))
    if problems or not keys:
        why = "; ".join(problems) or "it has no entry"
        raise ValueError(f"with a comma it must be a list of name:key, and {why}")
    return keys


def parse_lines(lines: Iterable[str]) -> tuple[list[NamedKey], list[str]]:
    """The keys of a file, one a line, and a text for each line that is wrong: `line 3: …`.

    A line is `name:key`, or a key without a colon, which is then named after its line. Empty lines and those that
    begin with `#` say nothing.
    """
    keys: list[NamedKey] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        place = f"line {number}"
        try:
            if ":" in text:
                keys.append(_named(NamedKey("", text, place)))
            elif is_key(text):
                keys.append(NamedKey(f"line-{number}", text, place))
            else:
                raise ValueError(f"{place}: {KEY_RULE}")
        except ValueError as exc:
            problems.append(str(exc))
    return keys, problems


def doubles(keys: Iterable[NamedKey]) -> Iterator[str]:
    """A text for each key, and each name, that was there before."""
    places: dict[tuple[str, str], str] = {}
    for key in keys:
        for what, value in (("name", key.name), ("key", key.key)):
            first = places.setdefault((what, value), key.place)
            if first != key.place:
                yield f"{key.place}: the {what} is the same as that of {first}"


def is_key(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _named(entry: NamedKey) -> NamedKey:
    name, colon, key = (part.strip() for part in entry.key.partition(":"))
    if not colon:
        raise ValueError(f"{entry.place}: it is no name:key")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{entry.place}: {NAME_RULE}")
    if not is_key(key):
        raise ValueError(f"{entry.place}: {KEY_RULE}")
    return NamedKey(name, key, entry.place)
