"""Plans of answers that may be calls: what is constrained, and from where on."""

from typing import Any

import pytest

from tasks.answer_parts import CallPart, TextPart
from tasks.contracts import Grammar, GrammarKind
from tasks.tool_formats.base import ToolFormat
from tests.unit.tool_formats.grammar_check import accepts
from tests.unit.tool_formats.reading import feed_all
from tests.unit.tool_formats.requests import (
    BY_NAME,
    REQUIRED,
    SCHEMA,
    STRICT,
    both_kinds_of_marks,
    every_format,
    function,
    one,
    plan,
    two,
)


@every_format
@both_kinds_of_marks
@pytest.mark.parametrize(
    ("grammar", "answer"),
    [
        (SCHEMA, '{"answer": 42}'),
        (Grammar(kind=GrammarKind.JSON_OBJECT), '{"any": {"thing": []}}'),
        (Grammar(kind=GrammarKind.GBNF, source='root ::= "yes" | "{" [a-z]+ "}"'), "{maybe}"),
    ],
    ids=["schema", "object", "gbnf"],
)
def test_an_answer_with_a_grammar_may_be_a_call_instead(
    tool_format: ToolFormat, is_special: bool, grammar: Grammar, answer: str
) -> None:
    made = plan(tool_format, is_special, grammar=grammar)
    assert made.grammar
    assert accepts(made.grammar, answer, is_special)
    assert accepts(made.grammar, one(tool_format), is_special)
    assert not accepts(made.grammar, "Oslo is cold.", is_special)
    assert not made.new_parser().is_free
    assert feed_all(made.new_parser(), answer).content == answer
    assert len(feed_all(made.new_parser(), one(tool_format)).calls) == 1


@every_format
def test_the_grammar_of_calls_wins_where_a_call_must_come(tool_format: ToolFormat) -> None:
    grammar = plan(tool_format, grammar=SCHEMA, **REQUIRED).grammar
    assert grammar
    assert not accepts(grammar, '{"answer": 42}', True)


@every_format
def test_nothing_is_constrained_where_nothing_asks_for_it(tool_format: ToolFormat) -> None:
    made = plan(tool_format)
    assert made.grammar is None
    assert made.opening is None
    assert made.new_parser().is_free


@pytest.mark.parametrize("name", ["hermes", "mistral", "mistral-named"])
@both_kinds_of_marks
def test_a_strict_call_is_constrained_from_its_mark_to_its_end(name: str, is_special: bool) -> None:
    made = plan(BY_NAME[name], is_special, tools=STRICT)
    mark = BY_NAME[name].opening or ""
    assert made.grammar
    call = one(BY_NAME[name]).removeprefix(mark)
    assert accepts(made.grammar, call, is_special)
    assert not accepts(made.grammar, call.replace("city", "town"), is_special)
    parser = made.new_parser()
    for _ in range(2):
        assert parser.is_free
        parser.feed("I look." + mark[:-1])
        assert parser.is_free
        parser.feed(mark[-1])
        assert not parser.is_free
        parser.feed(call[:-1])
        assert not parser.is_free
        assert parser.feed(call[-1])
        assert parser.is_free


@pytest.mark.parametrize("name", ["llama-json", "llama-pythonic"])
def test_only_calls_come_behind_the_tag_where_one_is_strict(name: str) -> None:
    made = plan(BY_NAME[name], tools=STRICT)
    assert made.grammar
    assert accepts(made.grammar, two(BY_NAME[name]), True)
    parser = made.new_parser()
    parser.feed("<|python_tag|>")
    assert not parser.is_free
    parser.feed(one(BY_NAME[name]))
    assert parser.has_calls
    assert not parser.is_free


def test_a_call_that_began_in_one_piece_with_its_mark_is_free() -> None:
    parser = plan(BY_NAME["hermes"], tools=STRICT).new_parser()
    parser.feed('<tool_call>{"')
    assert parser.is_free


def test_blanks_in_one_piece_with_the_mark_do_not_free_the_call() -> None:
    parser = plan(BY_NAME["hermes"], tools=STRICT).new_parser()
    parser.feed("<tool_call>\n")
    assert not parser.is_free


def test_a_strict_function_changes_nothing_where_calls_have_no_mark() -> None:
    assert plan(BY_NAME["generic"], tools=STRICT).grammar is None


@every_format
def test_a_function_that_is_not_strict_may_have_any_schema_beside_a_grammar(tool_format: ToolFormat) -> None:
    tools = [function("get_weather", {"not": {"required": ["town"]}}), function("now")]
    grammar = plan(tool_format, tools=tools, grammar=SCHEMA).grammar
    assert grammar
    assert accepts(grammar, one(tool_format), True)


def test_marks_that_are_control_tokens_are_preserved() -> None:
    assert plan(BY_NAME["hermes"], thinks=True).preserved == {"<tool_call>", "</tool_call>", "<think>"}
    assert plan(BY_NAME["hermes"], is_special=False, thinks=True).preserved == frozenset()
    assert plan(BY_NAME["hermes"], tools=None).preserved == frozenset()


@pytest.mark.parametrize(
    ("prompt", "is_inside", "opening"),
    [
        ("<|assistant|>\n", False, "<think>"),
        ("<|assistant|>\n<think>\n", True, None),
        ("<|assistant|>\n<think>\n\n</think>\n\n", False, None),
    ],
)
def test_the_prompt_decides_where_the_answer_begins(prompt: str, is_inside: bool, opening: str | None) -> None:
    made = plan(BY_NAME["hermes"], prompt=prompt, thinks=True, **REQUIRED)
    parser = made.new_parser()
    assert (parser.in_reasoning, parser.is_free, made.opening) == (is_inside, is_inside, opening)


def test_the_grammar_holds_when_the_reasoning_is_over() -> None:
    parser = plan(BY_NAME["hermes"], prompt="<think>", thinks=True, **REQUIRED).new_parser()
    parser.feed("Hm.</think")
    assert parser.is_free
    parser.feed(">")
    assert not parser.is_free
    first, *rest = parser.feed('\n\n<tool_call>\n{"name": "now", "arguments": {}}')
    assert isinstance(first, CallPart)
    assert first.name == "now"
    assert rest == [CallPart(0, "", "", "{}")]


@pytest.mark.parametrize(
    ("request_fields", "must_hold"),
    [
        ({"tools": None, "grammar": SCHEMA}, True),
        ({"grammar": SCHEMA}, True),
        (REQUIRED, True),
        ({"tools": STRICT}, False),
        ({}, False),
    ],
    ids=["schema", "schema or calls", "required", "strict", "free"],
)
def test_reasoning_is_no_end_where_the_grammar_is_of_the_answer(
    request_fields: dict[str, Any], must_hold: bool
) -> None:
    made = plan(BY_NAME["hermes"], prompt="<think>", thinks=True, **request_fields)
    assert made.must_hold is must_hold


def test_a_text_prompt_has_neither_calls_nor_reasoning() -> None:
    made = plan(BY_NAME["hermes"], thinks=True, messages=None, tools=None, prompts=["x"], grammar=SCHEMA)
    assert made.opening is None
    assert not made.new_parser().is_free
    assert made.new_parser().feed("<think>x") == [TextPart("<think>x")]
