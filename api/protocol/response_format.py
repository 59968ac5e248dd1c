"""What the answer must conform to: `response_format`, and the fields that llama.cpp has beside it."""

from typing import Any

import msgspec

from api.protocol.fields import Fields, InvalidRequest, check_plain
from tasks import grammars
from tasks.contracts import Grammar, GrammarKind

FORMATS = ("text", "json_object", "json_schema")
#: one of them is in every body whose parsing compiles a grammar
GRAMMAR_MARKS = (b'schema"', b'"grammar"', b'"strict"', b'"tool_choice"')


def may_have_grammar(body: bytes) -> bool:
    """Parsing it may take up to a third of a second, without the interpreter's lock."""
    return any(mark in body for mark in GRAMMAR_MARKS)


def read_grammar(fields: Fields) -> Grammar | None:
    """`response_format`, or llama.cpp's `json_schema`, `schema` (a JSON schema) or `grammar` (GBNF); one of them.

    Raises InvalidRequest, naming the keyword of the schema that cannot be enforced.
    """
    found = [
        ("response_format", _read_response_format(fields)),
        *((name, _schema(fields, name)) for name in ("json_schema", "schema")),
        ("grammar", _read_gbnf(fields)),
    ]
    given = [(name, grammar) for name, grammar in found if grammar is not None]
    if len(given) > 1:
        (first, _), (second, _) = given[:2]
        raise InvalidRequest(f"'{second}' and '{first}' both say what the answer must be; send one of them.", second)
    return given[0][1] if given else None


def _read_response_format(fields: Fields) -> Grammar | None:
    """`strict` changes nothing: a schema is enforced in any case."""
    given = fields.mapping("response_format")
    if not given:
        return None
    inner = Fields(given, "response_format")
    kind = inner.required_string("type")
    if kind not in FORMATS:
        expected = ", ".join(f'"{name}"' for name in FORMATS)
        raise InvalidRequest(f"'response_format.type' must be one of: {expected}.", "response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(inner, "schema") or Grammar(kind=GrammarKind.JSON_OBJECT)
    wrapped = inner.mapping("json_schema")
    if wrapped is None:
        raise InvalidRequest(
            '\'response_format.json_schema\' is missing; it must be an object like {"name": …, "schema": …}.',
            "response_format.json_schema",
        )
    fields = Fields(wrapped, "response_format.json_schema")
    fields.string("name")
    fields.string("description")
    fields.boolean("strict")
    grammar = _schema(fields, "schema")
    if grammar is None:
        name = fields.name("schema")
        raise InvalidRequest(f"'{name}' is missing; it must be a JSON schema.", name)
    return grammar


def _schema(fields: Fields, key: str) -> Grammar | None:
    schema = fields.mapping(key)
    return None if schema is None else schema_grammar(schema, fields.name(key))


def schema_grammar(schema: dict[str, Any], param: str) -> Grammar:
    """What the schema says, checked. Raises InvalidRequest."""
    check_plain(schema, param)
    return check_grammar(
        Grammar(kind=GrammarKind.JSON_SCHEMA, source=msgspec.json.encode(schema).decode()),
        param,
    )


def _read_gbnf(fields: Fields) -> Grammar | None:
    source = fields.string("grammar")
    if not source or not source.strip():
        return None
    return check_grammar(Grammar(kind=GrammarKind.GBNF, source=source), "grammar")


def check_grammar(grammar: Grammar, param: str) -> Grammar:
    """The grammar itself. Raises InvalidRequest when it cannot be enforced."""
    try:
        grammars.check_grammar(grammar)
    except grammars.GrammarError as exc:
        raise InvalidRequest(f"'{param}': {exc.message}", param) from None
    return grammar
