"""From a request and a model's ways to the plan of its answer: the parser, and the grammar with where it holds."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tasks.answer_parts import AnswerParser, AnswerPlan
from tasks.contracts import GenerateRequest, Grammar, GrammarKind, ToolChoice
from tasks.engines.base import InvalidRequest
from tasks.grammars import GrammarError, check_grammar, llguidance_grammar, prepared_schema
from tasks.tool_formats.base import SpecialId, Tool, ToolFormat
from tasks.tool_formats.parsers import AutoParser, ConstrainedParser, PlainParser, Restriction
from tasks.tool_formats.reasoning import Marks, PromptEnd, ReasoningParser, prompt_end

NO_PARAMETERS: dict[str, Any] = {"properties": {}}


class _Content(NamedTuple):
    """The plan of what follows the reasoning."""

    new_parser: Callable[[], AnswerParser]
    grammar: str | None = None


class AnswerWays(NamedTuple):
    """How one model writes."""

    tool_format: ToolFormat
    reasoning: Marks | None
    special: SpecialId


def plan_answer(request: GenerateRequest, ways: AnswerWays, prompt_text: str) -> AnswerPlan:
    """`prompt_text`: the rendered messages; the answer to a text prompt has no reasoning and no calls.

    Raises InvalidRequest naming the field whose schema or grammar cannot be enforced.
    """
    content = _content(request, ways)
    marks = ways.reasoning
    seen = ways.tool_format.marks if request.tools else ()
    if request.messages is None or marks is None:
        return AnswerPlan(content.new_parser, _preserved(seen, ways.special), content.grammar)
    end = prompt_end(prompt_text, marks)
    return AnswerPlan(
        lambda: ReasoningParser(marks, content.new_parser(), starts_inside=end is PromptEnd.OPENS),
        _preserved((*seen, *marks), ways.special),
        content.grammar,
        marks.opening if end is PromptEnd.LEAVES_OPEN else None,
        must_hold=content.grammar is not None and not content.new_parser().is_free,
    )


def _preserved(marks: tuple[str, ...], special: SpecialId) -> frozenset[str]:
    return frozenset(mark for mark in marks if special(mark) is not None)


def _content(request: GenerateRequest, ways: AnswerWays) -> _Content:
    answer = _answer_grammar(request.grammar)
    tools = read_tools(request.tools or [])
    if not tools or request.messages is None:
        return _Content(lambda: PlainParser(is_free=answer is None), answer)
    tool_format, many = ways.tool_format, request.parallel_tool_calls
    if request.tool_choice is ToolChoice.REQUIRED:
        allowed = [_checked(tool) for tool in tools if request.tool_name in (None, tool.name)]
        rules = tool_format.rules(allowed, many and request.tool_name is None, ways.special)
        return _Content(lambda: ConstrainedParser(tool_format), f"start: calls\n{rules}\n")
    names = frozenset(tool.name for tool in tools)
    grammar, restriction = None, Restriction.NOWHERE
    is_strict = any(tool.is_strict for tool in tools)
    if answer is not None or (is_strict and tool_format.opening is not None):
        rules = tool_format.rules([_held(tool) for tool in tools], many, ways.special)
        grammar, restriction = f"start: opened\n{rules}\n", Restriction.OPENED
        if answer is not None:
            grammar, restriction = either(answer, rules), Restriction.EVERYWHERE
    return _Content(lambda: AutoParser(tool_format, names, many, restriction), grammar)


def either(answer: str, rules: str) -> str:
    """A grammar of an answer (Lark, or llguidance's JSON), or of calls."""
    is_json = answer.lstrip().startswith("{")
    first, *others = json.loads(answer)["grammars"] if is_json else [{"lark_grammar": answer}]
    both = {"lark_grammar": f"start: @answer | calls\n{rules}\n"}
    return json.dumps({"grammars": [both, first | {"name": "answer"}, *others]})


def read_tools(definitions: list[dict[str, Any]]) -> list[Tool]:
    """OpenAI's definitions. A function without `parameters`, or whose schema lists no properties, takes none."""
    tools = []
    for index, definition in enumerate(definitions):
        function = definition.get("function") or {}
        schema = function.get("parameters")
        schema = NO_PARAMETERS if schema is None else schema
        if schema.get("properties") == {} and not set(schema) & {"patternProperties", "required", "minProperties"}:
            schema = {"additionalProperties": False} | schema
        if "$ref" not in schema:
            schema = schema | {"type": "object"}
        param = f"tools[{index}].function.parameters"
        tools.append(Tool(str(function.get("name", "")), schema, bool(function.get("strict")), param))
    return tools


def _held(tool: Tool) -> Tool:
    """For a grammar that calls may follow: what is not strict and cannot be enforced may be any object."""
    try:
        return _checked(tool)
    except InvalidRequest:
        if tool.is_strict:
            raise
        return tool._replace(schema={"type": "object"})


def _checked(tool: Tool) -> Tool:
    """With the schema as it can be put into a grammar."""
    try:
        check_grammar(Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(tool.schema)))
        schema = prepared_schema(tool.schema)
    except GrammarError as exc:
        raise InvalidRequest(exc.message, tool.param) from exc
    schema.pop("x-guidance", None)
    return tool._replace(schema=schema)


def _answer_grammar(grammar: Grammar | None) -> str | None:
    if grammar is None:
        return None
    try:
        return llguidance_grammar(grammar)
    except GrammarError as exc:
        param = "grammar" if grammar.kind is GrammarKind.GBNF else "response_format"
        raise InvalidRequest(exc.message, param) from exc
