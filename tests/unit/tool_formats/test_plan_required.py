"""Plans of answers that must be calls, and of schemas."""

from typing import Any

import pytest

from tasks.answer_parts import CallPart, TextPart
from tasks.contracts import Grammar, GrammarKind
from tasks.engines.base import InvalidRequest
from tasks.tool_formats.base import ToolFormat
from tasks.tool_formats.lark import MAX_CALLS
from tests.unit.tool_formats.grammar_check import accepts
from tests.unit.tool_formats.reading import feed_all
from tests.unit.tool_formats.requests import (
    BY_NAME,
    REQUIRED,
    WEATHER,
    both_kinds_of_marks,
    every_format,
    function,
    one,
    plan,
    two,
)


@every_format
@both_kinds_of_marks
def test_required_means_calls_and_nothing_else(tool_format: ToolFormat, is_special: bool) -> None:
    grammar = plan(tool_format, is_special, **REQUIRED).grammar
    assert grammar
    assert accepts(grammar, one(tool_format), is_special)
    assert accepts(grammar, two(tool_format), is_special)
    for bad in (
        "",
        "Oslo is cold.",
        "Sure. " + one(tool_format),
        one(tool_format).replace("city", "town"),
        one(tool_format).replace('"C"', '"K"'),
        one(tool_format).replace("get_weather", "get_whether"),
        one(tool_format)[:-1],
    ):
        assert not accepts(grammar, bad, is_special), bad


@every_format
@both_kinds_of_marks
def test_one_call_where_calls_are_not_parallel(tool_format: ToolFormat, is_special: bool) -> None:
    grammar = plan(tool_format, is_special, parallel_tool_calls=False, **REQUIRED).grammar
    assert grammar
    assert accepts(grammar, one(tool_format), is_special)
    assert not accepts(grammar, two(tool_format), is_special)


@every_format
def test_a_named_tool_is_called_once_and_no_other(tool_format: ToolFormat) -> None:
    grammar = plan(tool_format, tool_name="get_weather", **REQUIRED).grammar
    other = plan(tool_format, tool_name="now", **REQUIRED).grammar
    assert grammar
    assert other
    assert accepts(grammar, one(tool_format), True)
    assert not accepts(grammar, two(tool_format), True)
    assert not accepts(other, one(tool_format), True)


@every_format
def test_calls_that_must_come_leave_while_they_are_written(tool_format: ToolFormat) -> None:
    parser = plan(tool_format, **REQUIRED).new_parser()
    text = two(tool_format)
    name_ends = text.index("get_weather") + len("get_weather") + len('", "parameters": {')
    early = [part for character in text[:name_ends] for part in parser.feed(character)]
    assert isinstance(early[0], CallPart)
    assert early[0].name == "get_weather"
    assert early[0].call_id.startswith("call_")
    late = [part for character in text[name_ends:] for part in parser.feed(character)]
    parts = [part for part in early + late + parser.finish() if isinstance(part, CallPart)]
    assert len(parts) == len(early + late)
    assert "".join(part.arguments for part in parts if part.call == 0) == '{"city": "Oslo", "unit": "C"}'
    assert "".join(part.arguments for part in parts if part.call == 1) == "{}"
    assert [part.call for part in parts if part.name] == [0, 1]
    assert parser.has_calls
    assert not parser.is_free


@every_format
def test_a_call_that_is_cut_off_leaks_no_mark(tool_format: ToolFormat) -> None:
    text = one(tool_format)
    for end in range(len(text)):
        parser = plan(tool_format, **REQUIRED).new_parser()
        parts = parser.feed(text[:end]) + parser.finish()
        assert not any(isinstance(part, TextPart) for part in parts)


@pytest.mark.parametrize("use", [REQUIRED, {"tools": [function("now"), function("f", {"not": {}}, strict=True)]}])
def test_a_schema_that_cannot_be_enforced_is_the_clients_fault(use: dict[str, Any]) -> None:
    tools = [function("now"), function("f", {"not": {"type": "string"}}, strict=True)]
    with pytest.raises(InvalidRequest, match="not") as caught:
        plan(BY_NAME["hermes"], **(use | {"tools": tools}))
    assert caught.value.param == "tools[1].function.parameters"


def test_a_schema_is_not_looked_at_where_nothing_is_enforced() -> None:
    tools = [function("f", {"not": {"type": "string"}})]
    assert plan(BY_NAME["hermes"], tools=tools).grammar is None
    assert plan(BY_NAME["hermes"], tools=[*tools, function("now")], tool_name="now", **REQUIRED).grammar


def test_a_grammar_that_cannot_be_used_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(BY_NAME["hermes"], tools=None, grammar=Grammar(kind=GrammarKind.GBNF, source="no rules"))
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    "parameters",
    [{}, {"type": "object"}, {"properties": {"a": {}}}, {"properties": {}, "additionalProperties": True}],
    ids=str,
)
@every_format
def test_any_form_of_parameters_takes_an_object(tool_format: ToolFormat, parameters: Any) -> None:
    grammar = plan(tool_format, tools=[function("now", parameters)], **REQUIRED).grammar
    text = {
        "hermes": '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>',
        "mistral": '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}}]',
        "mistral-named": '[TOOL_CALLS]now[ARGS]{"a": 1}',
        "llama-json": '{"name": "now", "parameters": {"a": 1}}',
        "llama-pythonic": "[now(a=1)]",
        "generic": '{"tool_calls": [{"name": "now", "arguments": {"a": 1}}]}',
    }[tool_format.name]
    assert grammar
    assert accepts(grammar, text, True)
    assert not accepts(grammar, text.replace('{"a": 1}', "1").replace("a=1", "1"), True)


@pytest.mark.parametrize("parameters", [None, {"type": "object", "properties": {}}], ids=str)
@every_format
def test_a_function_without_parameters_gets_no_arguments(tool_format: ToolFormat, parameters: Any) -> None:
    grammar = plan(
        tool_format, tools=[function("get_weather", WEATHER), function("now", parameters)], **REQUIRED
    ).grammar
    assert grammar
    assert accepts(grammar, two(tool_format), True)
    argument = {"llama-pythonic": ("now()", "now(a=1)")}.get(tool_format.name, ("{}", '{"a": 1}'))
    assert not accepts(grammar, two(tool_format).replace(*argument), True)


@every_format
def test_a_schema_that_refers_to_itself(tool_format: ToolFormat) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}, "required": ["v"]}
    grammar = plan(tool_format, tools=[function("now"), function("get_weather", node)], **REQUIRED).grammar
    arguments = '{"next": {"v": 1}, "v": 2}'
    old = '{"city": "Oslo", "unit": "C"}'
    text = one(tool_format).replace(old, arguments).replace('city="Oslo", unit="C"', "**" + arguments)
    assert grammar
    assert accepts(grammar, text, True)
    assert not accepts(grammar, text.replace('"v": 1', '"v": true'), True)
    parser = plan(tool_format, tools=[function("get_weather", node)], **REQUIRED).new_parser()
    assert feed_all(parser, text).calls == [("get_weather", arguments)]


@every_format
def test_white_space_is_bounded(tool_format: ToolFormat) -> None:
    grammar = plan(tool_format, **REQUIRED).grammar
    assert grammar
    assert not accepts(grammar, one(tool_format).replace('{"city', "{" + " " * 100 + '"city'), True) or (
        tool_format.name == "llama-pythonic"
    )


@every_format
def test_calls_come_to_an_end(tool_format: ToolFormat) -> None:
    grammar = plan(tool_format, **REQUIRED).grammar
    first, both = one(tool_format), two(tool_format)
    closing = {"mistral": 1, "llama-pythonic": 1, "generic": 2}.get(tool_format.name, 0)
    opening = first[: len(first) - closing]
    another, end = (both[len(opening) : len(both) - closing], both[len(both) - closing :])
    assert grammar
    assert accepts(grammar, opening + another * (MAX_CALLS - 1) + end, True)
    assert not accepts(grammar, opening + another * MAX_CALLS + end, True)
