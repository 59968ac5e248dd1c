"""For templates that know no tools: instructions in the system's message, and calls as `{"tool_calls": […]}`."""

import json
from collections.abc import Sequence
from typing import Any

from tasks.tool_formats.base import Evidence, Reading, SpecialId, Tool
from tasks.tool_formats.json_calls import JsonArguments, find_object, head_before, read_objects
from tasks.tool_formats.lark import array_schema, json_rule

MAY = "To call one or several of them, answer with nothing but a JSON object of this form"
MUST = "Call at least one of them: answer with nothing but a JSON object of this form"
MUST_THIS = "Call the function {name}: answer with nothing but a JSON object of this form"
FORM = '{"tool_calls": [{"name": "name of the function", "arguments": {"name of an argument": "its value"}}]}'
ELSE = "When none of them helps, answer in words."


class Generic:
    name = "generic"
    marks: tuple[str, ...] = ()
    opening: str | None = None
    opening_lasts = False
    gap = " \t\r\n;"
    head = head_before("arguments")

    def recognises(self, evidence: Evidence) -> bool:
        return True

    def start(self, text: str, position: int, floor: int) -> int:
        return find_object(text, position, floor, self.gap)

    def read(self, text: str, start: int, is_whole: bool) -> Reading:
        return read_objects(text, start, is_whole)

    def arguments_reader(self) -> JsonArguments:
        return JsonArguments()

    def rules(self, tools: Sequence[Tool], many: bool, special: SpecialId) -> str:
        schema = {
            "type": "object",
            "properties": {"tool_calls": array_schema(tools, "arguments", many, at="/properties/tool_calls")},
            "required": ["tool_calls"],
            "additionalProperties": False,
        }
        return "\n".join(["calls: opened", json_rule("opened", schema)])


def instructions(tools: list[dict[str, Any]], is_required: bool, name: str | None, many: bool) -> str:
    """What a model must know that was not trained on tools. `name`: the one that must be called."""
    functions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    ask = MUST_THIS.format(name=name) if name else MUST if is_required else MAY
    if not many:
        ask = ask.replace("one or several of them", "one of them").replace("at least one", "one")
    lines = [f"You can call these functions:\n{functions}", f"{ask}:\n{FORM}"]
    return "\n\n".join(lines if is_required else [*lines, ELSE])


def with_instructions(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The text at the end of the first system message, or as one."""
    first = messages[0] if messages else {}
    if first.get("role") in ("system", "developer"):
        content = "\n\n".join(filter(None, [first.get("content"), text]))
        return [first | {"content": content}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
