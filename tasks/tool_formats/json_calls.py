"""Calls as JSON objects: reading them with the arguments in the model's own spelling, and streaming those."""

import json
import re
from typing import Any, NoReturn

from tasks.tool_formats.base import Found, RawCall, Reading, Verdict, balanced_end, begins_line, skip_blank, undecided

FIRST_KEYS = ("name", "parameters", "arguments", "type", "id", "function")
MAX_BLANKS = 200  #: between a brace and the first key
BEGINNINGS = re.compile("[{`]")
FENCE = re.compile(r"```(?:json)?[ \t]*\n\s*(?=\{)")
HALF_FENCE = re.compile(r"`{1,2}|```(?:j|js|jso|json)?[ \t]*(?:\n\s*)?")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


# numbers stay text: nothing is computed with them, and a very long one is no error
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)


def members(text: str) -> dict[str, str] | None:
    """The values of a JSON object as they are written; None: it is none."""
    result: dict[str, str] = {}
    try:
        position = skip_blank(text, 0)
        if text[position : position + 1] != "{":
            return None
        position = skip_blank(text, position + 1)
        while text[position : position + 1] != "}":
            if result:
                if text[position : position + 1] != ",":
                    return None
                position = skip_blank(text, position + 1)
            key, position = _DECODER.raw_decode(text, position)
            position = skip_blank(text, position)
            if not isinstance(key, str) or text[position : position + 1] != ":":
                return None
            start = skip_blank(text, position + 1)
            _, end = _DECODER.raw_decode(text, start)
            result[key] = text[start:end]
            position = skip_blank(text, end)
    except (ValueError, RecursionError):
        return None
    return result if skip_blank(text, position + 1) == len(text) else None


def items(text: str) -> list[str] | None:
    """The elements of a JSON array as they are written; None: it is none."""
    result: list[str] = []
    try:
        position = skip_blank(text, 1)
        while text[position : position + 1] != "]":
            if result:
                if text[position : position + 1] != ",":
                    return None
                position = skip_blank(text, position + 1)
            _, end = _DECODER.raw_decode(text, position)
            result.append(text[position:end])
            position = skip_blank(text, end)
    except (ValueError, RecursionError):
        return None
    return result


def value(text: str | None) -> Any:
    """Numbers come as text."""
    return None if text is None else _DECODER.decode(text)


def read_arguments(text: str | None) -> str | None:
    """The JSON text of an object, from it or from a JSON string with it; none given: an empty one; None: no object."""
    if text is None or text == "null":
        return "{}"
    if text.startswith('"'):
        text = str(value(text)).strip() or "{}"
    return text if members(text) is not None else None


def read_call(text: str, is_exact: bool = False) -> RawCall | None:
    """`{"name", "arguments"}`, with `parameters` for `arguments`, or as OpenAI nests it.

    `is_exact`: both must be there and nothing that a call does not have. None: it is no call.
    """
    found = members(text)
    if found is None or (is_exact and not set(found) <= set(FIRST_KEYS)):
        return None
    call_id = value(found.get("id"))
    if found.get("function", "").startswith("{"):
        found = members(found["function"]) or {}
    name = value(found.get("name"))
    spelled = found.get("arguments", found.get("parameters"))
    arguments = read_arguments(spelled)
    if not isinstance(name, str) or arguments is None or (is_exact and spelled is None):
        return None
    return RawCall(name, arguments, call_id if isinstance(call_id, str) else "")


def read_array(text: str) -> tuple[RawCall, ...] | None:
    """The calls of an array; None: it has none, or something that is no call."""
    calls = [read_call(item) for item in items(text) or []]
    known = tuple(call for call in calls if call)
    return known if known and len(known) == len(calls) else None


def read_object(text: str) -> tuple[RawCall, ...] | None:
    """A call that stands alone, or `{"tool_calls": […]}`; None: it is neither."""
    found = members(text)
    if found is not None and set(found) == {"tool_calls"}:
        return read_array(found["tool_calls"]) if found["tool_calls"].startswith("[") else None
    call = read_call(text, is_exact=True)
    return (call,) if call else None


def find_object(text: str, position: int, floor: int, gap: str) -> int:
    """Where a line begins with an object, or with a fenced block of JSON; the text's length: nowhere."""
    for match in BEGINNINGS.finditer(text, position):
        start = match.start()
        if not begins_line(text, start, floor, gap):
            continue
        if match.group() == "{" or FENCE.match(text, start) or HALF_FENCE.fullmatch(text, start):
            return start
    return len(text)


def read_objects(text: str, start: int, is_whole: bool) -> Reading:
    """One object, or all those of a fenced block."""
    if text.startswith("{", start):
        return _read_one(text, start, is_whole)
    fence = FENCE.match(text, start)
    if not fence:
        return undecided(is_whole) if HALF_FENCE.fullmatch(text, start) else Verdict.NOT_A_CALL
    calls: list[RawCall] = []
    position = fence.end()
    while text.startswith("{", position):
        reading = _read_one(text, position, is_whole)
        if isinstance(reading, Verdict):
            return reading
        calls.extend(reading.calls)
        position = skip_blank(text, reading.end)
    rest = text[position : position + 3]
    if rest == "```":
        return Found(tuple(calls), position + 3)
    if not "```".startswith(rest):
        return Verdict.NOT_A_CALL
    return Found(tuple(calls), len(text)) if is_whole else Verdict.WAIT


def _read_one(text: str, start: int, is_whole: bool) -> Reading:
    if not _may_be_call(text, start):
        return Verdict.NOT_A_CALL
    end = balanced_end(text, start)
    if end is None:
        return undecided(is_whole)
    calls = read_object(text[start:end])
    return Found(calls, end) if calls else Verdict.NOT_A_CALL


def _may_be_call(text: str, brace: int) -> bool:
    """By the first key, so that other objects leave at once."""
    rest = text[brace + 1 : brace + 1 + MAX_BLANKS].lstrip()
    if not rest:
        return len(text) < brace + 1 + MAX_BLANKS
    key, quote, _ = rest[1:].partition('"')
    keys = (*FIRST_KEYS, "tool_calls")
    return rest[0] == '"' and (key in keys if quote else any(known.startswith(key) for known in keys))


def head_before(key: str) -> re.Pattern[str]:
    """What a constrained call has before the value of `key`."""
    return re.compile(rf'\{{\s*"name"\s*:\s*"(?P<name>(?:[^"\\]|\\.)*)"\s*,\s*"{key}"\s*:\s*(?=\{{)')


class JsonArguments:
    """Streams the text of an object. See ArgumentsReader."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> tuple[str, str | None]:
        for index, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return text[: index + 1], text[index + 1 :]
        return text, None
