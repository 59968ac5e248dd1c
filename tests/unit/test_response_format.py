"""`response_format`, and llama.cpp's fields beside it."""

import json
from typing import Any

import pytest

from api.protocol.fields import Fields, InvalidRequest
from api.protocol.response_format import may_have_grammar, read_grammar
from tasks.contracts import Grammar, GrammarKind
from tests.unit.cases import anything

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
GBNF = 'root ::= "yes" | "no"'
#: "$ref" points nowhere, so no grammar can be made of it
BAD = {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}


def wrapped(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | fields}


def read(**fields: Any) -> Grammar | None:
    return read_grammar(Fields(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {}},
        {"response_format": {"type": "text"}},
        {"grammar": ""},
        {"grammar": " \n"},
        {"json_schema": None, "schema": None, "grammar": None},
    ],
)
def test_nothing_is_asked_for(fields: dict[str, Any]) -> None:
    assert read(**fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        *[{"response_format": wrapped(SCHEMA, strict=strict)} for strict in (True, False, None)],
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"schema": SCHEMA},
        {"response_format": {"type": "text"}, "json_schema": SCHEMA},
    ],
)
def test_schema_in_each_of_its_places(fields: dict[str, Any]) -> None:
    """PAR-09: `strict` or not. The order of the properties is kept."""
    grammar = read(**fields)
    assert grammar is not None
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert json.loads(grammar.source) == SCHEMA
    assert list(json.loads(grammar.source)["properties"]) == ["b", "a"]


def test_any_object() -> None:
    assert read(response_format={"type": "json_object"}) == Grammar(kind=GrammarKind.JSON_OBJECT)


def test_llama_cpps_own_notation() -> None:
    assert read(grammar=GBNF) == Grammar(kind=GrammarKind.GBNF, source=GBNF)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *[({"response_format": bad}, "response_format") for bad in anything("json", [], True)],
        ({"response_format": {"schema": {}}}, "response_format.type"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"response_format": {"type": 5}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": "x"}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": wrapped(None)}, "response_format.json_schema.schema"),
        ({"response_format": wrapped("x")}, "response_format.json_schema.schema"),
        ({"response_format": wrapped(SCHEMA, name=5)}, "response_format.json_schema.name"),
        ({"response_format": wrapped(SCHEMA, strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": wrapped({"maximum": 10**25})}, "response_format.json_schema.schema"),
        *[({"json_schema": bad}, "json_schema") for bad in anything("x", [], True)],
        *[({"schema": bad}, "schema") for bad in anything("x", [], True)],
        *[({"grammar": bad}, "grammar") for bad in anything(5, {}, True)],
        # what cannot be enforced
        ({"response_format": wrapped(BAD)}, "response_format.json_schema.schema"),
        ({"json_schema": BAD}, "json_schema"),
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"grammar": "root ="}, "grammar"),
        # two at once
        ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "json_schema"),
        ({"response_format": wrapped(SCHEMA), "grammar": GBNF}, "grammar"),
        ({"json_schema": SCHEMA, "schema": SCHEMA}, "schema"),
        ({"json_schema": SCHEMA, "grammar": GBNF}, "grammar"),
    ],
)
def test_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": wrapped(SCHEMA)},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"schema": SCHEMA},
        {"grammar": GBNF},
        {"tools": [], "tool_choice": "required"},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ],
)
def test_bodies_that_compile_a_grammar_are_known_before_they_are_parsed(fields: dict[str, Any]) -> None:
    assert may_have_grammar(json.dumps(fields).encode())
    assert not may_have_grammar(json.dumps({"messages": [{"role": "user", "content": "a grammar"}]}).encode())
