"""Llama 3.x: `{"name": …, "parameters": {…}}` on a line of its own, with or without `<|python_tag|>` before it."""

import re
from collections.abc import Sequence

from tasks.tool_formats.base import Evidence, Reading, SpecialId, Tool, Verdict, find_mark, skip_blank, undecided
from tasks.tool_formats.json_calls import JsonArguments, find_object, head_before, read_objects
from tasks.tool_formats.lark import call_schema, json_rule, mark_rule, repeated

TAG = "<|python_tag|>"
WRITTEN = re.compile(r"[\"']name[\"']\s*:[^{}]{0,60}[\"']parameters[\"']\s*:")


class LlamaJson:
    name = "llama-json"
    marks: tuple[str, ...] = (TAG,)
    opening: str | None = TAG
    opening_lasts = True
    gap = " \t\r\n;"
    head = head_before("parameters")

    def recognises(self, evidence: Evidence) -> bool:
        return WRITTEN.search(evidence.writing) is not None or (not evidence.call and TAG in evidence.source)

    def start(self, text: str, position: int, floor: int) -> int:
        return min(find_mark(text, TAG, position), find_object(text, position, floor, self.gap))

    def read(self, text: str, start: int, is_whole: bool) -> Reading:
        """Calls that `;` or a line's end parts are found one by one."""
        if text[start] != "<":
            return read_objects(text, start, is_whole)
        position = skip_blank(text, start + len(TAG))
        if not text.startswith(TAG, start) or position == len(text):
            return undecided(is_whole)
        return read_objects(text, position, is_whole) if text[position] == "{" else Verdict.NOT_A_CALL

    def arguments_reader(self) -> JsonArguments:
        return JsonArguments()

    def rules(self, tools: Sequence[Tool], many: bool, special: SpecialId) -> str:
        """Models of this family write the tag or leave it away; so may a constrained answer."""
        return "\n".join(
            [
                "calls: tag? opened",
                f"opened: {repeated('object', many, '; ')}",
                mark_rule("tag", TAG, special),
                json_rule("object", call_schema(tools, "parameters")),
            ]
        )
