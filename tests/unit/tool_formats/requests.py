"""Requests with tools, and calls in every format that answer them."""

import json
from typing import Any

import pytest

from tasks.answer_parts import AnswerPlan
from tasks.contracts import GenerateRequest, Grammar, GrammarKind, ToolChoice
from tasks.tool_formats.base import ToolFormat
from tasks.tool_formats.plan import AnswerWays, plan_answer
from tasks.tool_formats.reasoning import KNOWN_MARKS
from tasks.tool_formats.registry import FORMATS
from tests.unit.tool_formats.grammar_check import no_special, special

BY_NAME = {tool_format.name: tool_format for tool_format in FORMATS}
WEATHER = {
    "type": "object",
    "$defs": {"Unit": {"enum": ["C", "F"]}},
    "properties": {"city": {"type": "string"}, "unit": {"$ref": "#/$defs/Unit"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
SCHEMA = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(ANSWER))

#: format -> one call of get_weather (with a city and a unit), and two calls, the second of now
CALLS = {
    "hermes": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>',
        '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}]',
        ', {"name": "now", "arguments": {}}]',
    ),
    "mistral-named": (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "unit": "C"}',
        "[TOOL_CALLS]now[ARGS]{}",
    ),
    "llama-json": (
        '{"name": "get_weather", "parameters": {"city": "Oslo", "unit": "C"}}',
        '; {"name": "now", "parameters": {}}',
    ),
    "llama-pythonic": ('[get_weather(city="Oslo", unit="C")]', ", now()]"),
    "generic": (
        '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}]}',
        ', {"name": "now", "arguments": {}}]}',
    ),
}


def one(tool_format: ToolFormat) -> str:
    return CALLS[tool_format.name][0]


def two(tool_format: ToolFormat) -> str:
    first, second = CALLS[tool_format.name]
    closing = {"mistral": 1, "llama-pythonic": 1, "generic": 2}.get(tool_format.name, 0)
    return first[: len(first) - closing] + second


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    definition = {"name": name, **more} | ({} if parameters is None else {"parameters": parameters})
    return {"type": "function", "function": definition}


TOOLS = [function("get_weather", WEATHER), function("now")]


def plan(
    tool_format: ToolFormat, is_special: bool = True, prompt: str = "", thinks: bool = False, **more: Any
) -> AnswerPlan:
    request = GenerateRequest(
        id="r",
        model="m",
        reply_to="a",
        **({"messages": [{"role": "user", "content": "x"}], "tools": TOOLS} | more),
    )
    ways = AnswerWays(tool_format, KNOWN_MARKS[0] if thinks else None, special if is_special else no_special)
    return plan_answer(request, ways, prompt)


every_format = pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
both_kinds_of_marks = pytest.mark.parametrize("is_special", [True, False], ids=["control tokens", "text"])
REQUIRED: dict[str, Any] = {"tool_choice": ToolChoice.REQUIRED}
STRICT = [function("get_weather", WEATHER, strict=True), function("now")]
