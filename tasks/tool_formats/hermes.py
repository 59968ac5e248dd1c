"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one block for each call."""

from collections.abc import Sequence

from tasks.tool_formats.base import (
    Evidence,
    Found,
    Reading,
    SpecialId,
    Tool,
    Verdict,
    balanced_end,
    find_mark,
    skip_blank,
    undecided,
)
from tasks.tool_formats.json_calls import JsonArguments, head_before, read_call
from tasks.tool_formats.lark import call_schema, json_rule, mark_rule, repeated

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NEWLINE = "\n"


class Hermes:
    name = "hermes"
    marks: tuple[str, ...] = (OPEN, CLOSE)
    opening: str | None = OPEN
    opening_lasts = False
    gap = " \t\r\n"
    head = head_before("arguments")

    def recognises(self, evidence: Evidence) -> bool:
        """Qwen3-Coder has the same mark around XML, which is another format."""
        return OPEN in evidence.writing and "<function=" not in evidence.writing

    def start(self, text: str, position: int, floor: int) -> int:
        return find_mark(text, OPEN, position)

    def read(self, text: str, start: int, is_whole: bool) -> Reading:
        """A block whose closing mark is missing ends with the answer, or where the next one begins."""
        brace = skip_blank(text, start + len(OPEN))
        if not text.startswith(OPEN, start) or brace == len(text):
            return undecided(is_whole)
        if text[brace] != "{":
            return Verdict.NOT_A_CALL
        end = balanced_end(text, brace)
        if end is None:
            return undecided(is_whole)
        call = read_call(text[brace:end])
        if call is None:
            return Verdict.NOT_A_CALL
        after = skip_blank(text, end)
        if text.startswith(CLOSE, after):
            return Found((call,), after + len(CLOSE))
        if text.startswith(OPEN, after):
            return Found((call,), after)
        if not CLOSE.startswith(text[after:]) and not OPEN.startswith(text[after:]):
            return Verdict.NOT_A_CALL
        if not is_whole:
            return Verdict.WAIT
        return Found((call,), len(text) if CLOSE.startswith(text[after:]) else after)

    def arguments_reader(self) -> JsonArguments:
        return JsonArguments()

    def rules(self, tools: Sequence[Tool], many: bool, special: SpecialId) -> str:
        return "\n".join(
            [
                f"calls: {repeated('block', many, NEWLINE)}",
                "block: open opened",
                'opened: "\\n"? object "\\n" close',
                mark_rule("open", OPEN, special),
                mark_rule("close", CLOSE, special),
                json_rule("object", call_schema(tools, "arguments")),
            ]
        )
