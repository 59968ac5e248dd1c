"""Reading of answers in tests: in one piece, or in any pieces."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from tasks.answer_parts import AnswerParser, AnswerPart, CallPart, TextPart
from tasks.tool_formats.base import ToolFormat
from tasks.tool_formats.parsers import AutoParser

TOOLS = frozenset({"get_weather", "now", "send-mail", "notes.add"})

Calls = list[tuple[str, str]]


class Read(NamedTuple):
    """An answer's parts, joined."""

    content: str
    calls: Calls  #: name and arguments
    reasoning: str
    ids: list[str]


def join(parts: Iterable[AnswerPart]) -> Read:
    content = reasoning = ""
    calls: list[list[str]] = []
    ids: list[str] = []
    for part in parts:
        if isinstance(part, CallPart):
            if part.call_id:
                assert part.call == len(calls), "calls are numbered from 0"
                assert part.name
                calls.append([part.name, ""])
                ids.append(part.call_id)
            assert part.call == len(calls) - 1
            calls[-1][1] += part.arguments
        else:
            assert isinstance(part, TextPart)
            assert part.text, "no empty part"
            if part.is_reasoning:
                reasoning += part.text
            else:
                content += part.text
    return Read(content, [(name, arguments) for name, arguments in calls], reasoning, ids)


def feed_all(parser: AnswerParser, pieces: Iterable[str]) -> Read:
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return join(parts + parser.finish())


def read(tool_format: ToolFormat, text: str, many: bool = True) -> Read:
    return feed_all(AutoParser(tool_format, TOOLS, many), [text])


def cut(text: str, places: Iterable[int]) -> list[str]:
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(at)]


class Output(NamedTuple):
    """What a model wrote, and what it means."""

    label: str
    text: str
    calls: Calls
    content: str = ""


def as_text(label: str, text: str) -> Output:
    """No call in it: all of it is content, as it is."""
    return Output(label, text, [], text)


OSLO = ("get_weather", '{"city": "Oslo"}')
NOW = ("now", "{}")
