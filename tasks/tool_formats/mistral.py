"""Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, and the newer `[TOOL_CALLS]name[ARGS]{…}`."""

import re
from collections.abc import Sequence

from tasks.tool_formats.base import (
    Evidence,
    Found,
    RawCall,
    Reading,
    SpecialId,
    Tool,
    Verdict,
    balanced_end,
    find_mark,
    skip_blank,
    undecided,
)
from tasks.tool_formats.json_calls import JsonArguments, head_before, members, read_array, read_call
from tasks.tool_formats.lark import arguments_rules, array_schema, json_rule, literal, mark_rule, repeated

OPEN, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
NAMED = re.compile(r"(?P<name>[\w.-]+)(?:\[CALL_ID\](?P<id>\w+))?\[ARGS\]\s*(?=\{)")
HALF_NAMED = re.compile(r"[\w.-]+(?:\[CALL_ID\]\w*)?")


class Mistral:
    """An array of calls behind the mark; a name behind it is read, too."""

    name = "mistral"
    marks: tuple[str, ...] = (OPEN, ID, ARGS)
    opening: str | None = OPEN
    opening_lasts = False
    gap = " \t\r\n"
    head = head_before("arguments")

    def recognises(self, evidence: Evidence) -> bool:
        return OPEN in evidence.writing and ARGS not in evidence.writing

    def start(self, text: str, position: int, floor: int) -> int:
        return find_mark(text, OPEN, position)

    def read(self, text: str, start: int, is_whole: bool) -> Reading:
        position = skip_blank(text, start + len(OPEN))
        if not text.startswith(OPEN, start) or position == len(text):
            return undecided(is_whole)
        if text[position] in "[{":
            return _read_json(text, position, is_whole)
        return _read_named(text, position, is_whole)

    def arguments_reader(self) -> JsonArguments:
        return JsonArguments()

    def rules(self, tools: Sequence[Tool], many: bool, special: SpecialId) -> str:
        return "\n".join(
            [
                "calls: open opened",
                'opened: " "? array',
                mark_rule("open", OPEN, special),
                json_rule("array", array_schema(tools, "arguments", many)),
            ]
        )


class MistralNamed(Mistral):
    """A name and arguments behind the mark, once for each call."""

    name = "mistral-named"
    head = re.compile(r"(?P<name>[\w.-]+)\[ARGS\](?=\{)")

    def recognises(self, evidence: Evidence) -> bool:
        return OPEN in evidence.writing and ARGS in evidence.writing

    def rules(self, tools: Sequence[Tool], many: bool, special: SpecialId) -> str:
        named = [f"{literal(tool.name)} args arguments_{index}" for index, tool in enumerate(tools)]
        return "\n".join(
            [
                f"calls: {repeated('call', many)}",
                "call: open opened",
                f"opened: {' | '.join(named)}",
                mark_rule("open", OPEN, special),
                mark_rule("args", ARGS, special),
                *arguments_rules(tools),
            ]
        )


def _read_json(text: str, start: int, is_whole: bool) -> Reading:
    end = balanced_end(text, start)
    if end is None:
        return undecided(is_whole)
    if text[start] == "[":
        calls = read_array(text[start:end])
    else:
        call = read_call(text[start:end])
        calls = (call,) if call else None
    return Found(calls, end) if calls else Verdict.NOT_A_CALL


def _read_named(text: str, start: int, is_whole: bool) -> Reading:
    head = NAMED.match(text, start)
    if not head:
        return undecided(is_whole) if _may_be_named(text, start) else Verdict.NOT_A_CALL
    end = balanced_end(text, head.end())
    if end is None:
        return undecided(is_whole)
    arguments = text[head.end() : end]
    if members(arguments) is None:
        return Verdict.NOT_A_CALL
    return Found((RawCall(head["name"], arguments, head["id"] or ""),), end)


def _may_be_named(text: str, start: int) -> bool:
    begun = HALF_NAMED.match(text, start)
    if not begun:
        return False
    rest = text[begun.end() :]
    if rest.startswith(ARGS):
        return not rest[len(ARGS) :].strip()
    return ARGS.startswith(rest) or ID.startswith(rest)
