"""Which JSON Schema keywords hold: the README's table, each row with texts that must pass and texts that must not."""

from pathlib import Path
from typing import Any

import pytest

from tasks.grammars import GrammarError, check_grammar
from tasks.schema_keywords import FORMATS, KEYWORDS, UNHELD, keywords_table
from tests.unit.grammar_support import conforms, json_schema

README = Path(__file__).parents[2] / "README.md"
INTEGER = {"type": "integer"}
TAGGED = [
    {"type": "object", "properties": {"kind": {"const": kind}, "v": {"type": t}}, "required": ["kind", "v"]}
    for kind, t in (("a", "integer"), ("b", "string"))
]

# keyword, schema, texts that conform, texts that do not
HELD: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("type", {"type": "null"}, ["null"], ["0", '""']),
    ("type", {"type": "boolean"}, ["true", "false"], ["True", "1", "null"]),
    ("type", INTEGER, ["0", "-7", "123456789012345678901"], ["1.5", "1.0", "1e3", "01", '"1"']),
    ("type", {"type": "number"}, ["0", "-1.25", "1e5", "2E-3"], [".5", "1.", "+1", "NaN", "Infinity"]),
    ("type", {"type": "string"}, ['""', '"é😀 \\n \\" \\\\"'], ["'a'", '"a', '"\t"', '"\\x41"', "a"]),
    ("type", {"type": "array"}, ["[]", '[1, "a", [null], {}]'], ["[1,]", "[", "{}"]),
    ("type", {"type": "object"}, ["{}", '{"a": {"b": [1]}}'], ["[]", "{a: 1}", '{"a":1,}']),
    ("type", {"type": ["string", "null"]}, ['"a"', "null"], ["1", "true"]),
    ("enum", {"enum": ["a", 1, None, {"x": [1]}]}, ['"a"', "1", "null", '{"x": [1]}'], ['"b"', "2", '{"x": [2]}']),
    ("enum", {"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    ("const", {"const": {"a": [True]}}, ['{"a": [true]}'], ['{"a": []}', "{}"]),
    ("const", {"const": 'q"\\/é'}, ['"q\\"\\\\/é"'], ['"q"']),
    ("properties", {"type": "object", "properties": {"a": INTEGER}}, ["{}", '{"a": 1}'], ['{"a": "x"}', '{"b": "x"}']),
    ("properties", {"type": "object", "properties": {"a": {}, "b": False}}, ['{"a": 1}'], ['{"b": 1}']),
    (
        "properties",
        {"type": "object", "properties": {"b": INTEGER, "a": INTEGER}, "required": ["a", "b"]},
        ['{"b": 1, "a": 2}'],
        ['{"a": 2, "b": 1}', '{"b": 1, "a": 2, "b": 3}'],
    ),
    (
        "required",
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]},
        ['{"b": 1}', '{"a": 0, "b": 1}'],
        ["{}", '{"a": 1}'],
    ),
    ("required", {"type": "object", "required": ["z"]}, ['{"z": 1}', '{"z": 1, "a": 2}'], ["{}", '{"a": 1}']),
    (
        "additionalProperties",
        {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": False},
        ["{}", '{"a": 1}'],
        ['{"b": 1}', '{"a": 1, "b": 1}'],
    ),
    (
        "additionalProperties",
        {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": {"type": "boolean"}},
        ['{"a": 1, "b": true}', '{"b": true}'],
        ['{"b": 1}', '{"b": true, "a": true}', '{"\\u0061": true}'],
    ),
    ("additionalProperties", {"type": "object", "additionalProperties": True}, ['{"b": 1}'], ['{"b"}']),
    (
        "additionalProperties",
        {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
        ['{"a": 1, "b": "x"}'],
        ['{"a": "x"}'],
    ),
    (
        "additionalProperties",  # absent: closed where nothing else adds properties
        {"type": "object", "properties": {"x": {"type": "object", "properties": {"a": INTEGER}}}, "required": ["x"]},
        ['{"x": {}}', '{"x": {"a": 1}}'],
        ['{"x": {"b": 1}}', '{"x": {}, "y": 1}'],
    ),
    (
        "additionalProperties",
        {"type": "object", "properties": {"a": INTEGER}, "required": ["b"]},
        ['{"b": 1}'],
        ["{}"],
    ),
    (
        "additionalProperties",  # the alternatives add to what is beside them
        {
            "type": "object",
            "properties": {"a": INTEGER},
            "anyOf": [{"$ref": "#/$defs/b"}, {"properties": {"c": INTEGER}, "required": ["c"]}],
            "$defs": {"b": {"properties": {"b": INTEGER}, "required": ["b"]}},
        },
        ['{"a": 1, "b": 2}', '{"a": 1, "c": 2}'],
        ['{"a": "x", "b": 2}'],
    ),
    (
        "additionalProperties",  # a base that another schema extends, and that is used alone, too
        {
            "type": "object",
            "properties": {
                "plain": {"$ref": "#/$defs/base"},
                "more": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": INTEGER}, "required": ["b"]}]},
            },
            "required": ["plain", "more"],
            "$defs": {"base": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}},
        },
        ['{"plain": {"a": 1}, "more": {"a": 1, "b": 2}}'],
        ['{"plain": {"a": 1}, "more": {"a": 1}}'],
    ),
    (
        "patternProperties",
        {"type": "object", "patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
        ["{}", '{"n_a": 1}'],
        ['{"x": 1}', '{"n_a": "x"}'],
    ),
    ("minProperties", {"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    (
        "minProperties",
        {"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 2},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1}', '{"a": 1, "a": 2}'],
    ),
    ("maxProperties", {"type": "object", "maxProperties": 1}, ["{}", '{"a": 1}'], ['{"a": 1, "b": 2}']),
    ("items", {"type": "array", "items": INTEGER}, ["[]", "[1, 2]"], ['["a"]', '[1, "a"]']),
    ("items", {"type": "array", "items": [INTEGER]}, ["[]", '[1, "a"]'], ['["a"]']),
    ("prefixItems", {"type": "array", "prefixItems": [INTEGER], "items": False}, ["[]", "[1]"], ["[1, 2]", '["a"]']),
    ("prefixItems", {"type": "array", "prefixItems": [INTEGER]}, ['[1, "a"]'], ['["a"]']),
    (
        "additionalItems",
        {"type": "array", "items": [INTEGER], "additionalItems": {"type": "string"}},
        ['[1, "a"]'],
        ["[1, 2]"],
    ),
    ("minItems", {"type": "array", "minItems": 2}, ["[1, 2]", "[1, 2, 3]"], ["[]", "[1]"]),
    ("maxItems", {"type": "array", "maxItems": 1}, ["[]", "[1]"], ["[1, 2]"]),
    ("minLength", {"type": "string", "minLength": 2}, ['"é😀"', '"\\n\\n"'], ['"a"', '"😀"', '"\\n"']),
    ("maxLength", {"type": "string", "maxLength": 2}, ['""', '"é😀"', '"\\"\\""'], ['"abc"']),
    ("pattern", {"type": "string", "pattern": "b+"}, ['"abc"', '"b"'], ['"ac"', '""']),
    ("pattern", {"type": "string", "pattern": r"^\d{2}-\w+$"}, ['"12-ab"'], ['"12-ab "', '"x12-ab"', '"1-a"']),
    ("pattern", {"type": "string", "pattern": "^(a|b)$", "maxLength": 1}, ['"a"'], ['"ab"']),
    ("minimum", {"type": "integer", "minimum": 3}, ["3", "12"], ["2", "-3", "03"]),
    ("minimum", {"minimum": 3}, ["3", '"text"', "null"], ["2", "2.5"]),
    ("maximum", {"type": "number", "maximum": 1.5}, ["1.5", "-9", "0.25"], ["1.51", "2"]),
    ("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 0}, ["0.1", "1"], ["0", "0.0", "-1"]),
    ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 10}, ["9", "-10"], ["10", "11"]),
    ("multipleOf", {"type": "integer", "multipleOf": 3}, ["0", "9", "-3"], ["10", "1"]),
    ("multipleOf", {"type": "number", "multipleOf": 0.01}, ["1.25", "1", "0.5"], ["1.255"]),
    ("anyOf", {"anyOf": [INTEGER, {"type": "string", "maxLength": 1}]}, ["1", '"a"'], ['"ab"', "null"]),
    ("anyOf", {"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 5}]}, ["0", "7"], ["3", '"a"']),
    ("oneOf", {"oneOf": [INTEGER, {"type": "string"}]}, ["1", '"a"'], ["true"]),
    ("oneOf", {"oneOf": TAGGED}, ['{"kind": "a", "v": 1}', '{"kind": "b", "v": "x"}'], ['{"kind": "a", "v": "x"}']),
    ("allOf", {"type": "integer", "allOf": [{"minimum": 3}, {"maximum": 5}]}, ["4"], ["2", "6"]),
    (
        "allOf",
        {
            "allOf": [
                {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
                {"type": "object", "properties": {"b": INTEGER}, "required": ["b"]},
            ]
        },
        ['{"a": 1, "b": 2}'],
        ['{"a": 1}', '{"b": 2}'],
    ),
    (
        "$ref",
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                    "required": ["next"],
                    "additionalProperties": False,
                }
            },
        },
        ['{"next": {"next": null}}'],
        ['{"next": 1}', "{}", '{"next": {}}'],
    ),
    ("$defs", {"$ref": "#/$defs/a~1b", "$defs": {"a/b": INTEGER}}, ["1"], ['"a"']),
    ("definitions", {"$ref": "#/definitions/n", "minimum": 3, "definitions": {"n": INTEGER}}, ["3"], ["2", '"a"']),
    ("$id", {"$id": "https://example.org/s", "$ref": "#/$defs/n", "$defs": {"n": INTEGER}}, ["1"], ["null"]),
    ("$anchor", {"$ref": "#n", "$defs": {"n": {"$anchor": "n", "type": "integer"}}}, ["1"], ["null"]),
    ("nullable", {"type": "string", "nullable": True}, ["null", '"a"'], ["1"]),
    ("nullable", {"type": "string", "enum": ["a"], "nullable": True}, ["null", '"a"'], ['"b"']),
]
HELD += [
    (keyword, {"type": "integer", keyword: value}, ["1"], ['"a"'])
    for keyword, value in {
        "title": "T",
        "description": "D",
        "default": 3,
        "examples": [1],
        "deprecated": True,
        "readOnly": True,
        "writeOnly": True,
        "$comment": "c",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "contentEncoding": "base64",
        "contentMediaType": "image/png",
        "contentSchema": {"type": "string"},
        "x-vendor": {"any": "thing"},
    }.items()
]

FORMAT_TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "date-time": (
        ["2024-02-29T12:00:00Z", "2023-12-31T23:59:59.5+02:00"],
        ["2023-02-29T12:00:00Z", "2024-02-10 12:00", "2024-02-10"],
    ),
    "time": (["12:00:00Z", "08:30:00.25-07:00"], ["12:00:00", "25:00:00Z", "noon"]),
    "date": (
        ["2024-02-29", "2000-02-29", "2023-02-28", "1999-12-31"],
        ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "0000-01-01", "23-1-1"],
    ),
    "duration": (["P1D", "PT1H30M", "P2W"], ["P", "1D", "PT"]),
    "email": (["a@example.org", "first.last+tag@example.org"], ["a", "a b@example.org", "@example.org"]),
    "hostname": (["example.org", "a-b.c"], ["a_b", "-a", ""]),
    "ipv4": (["127.0.0.1", "255.255.255.255"], ["256.1.1.1", "1.2.3"]),
    "ipv6": (["::1", "fe80::1"], ["1::2::3", "12345::"]),
    "uri": (["https://example.org/a?b#c", "mailto:a@example.org"], ["a", "/a/b", "a b"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", "g23e4567-e89b-12d3-a456-426614174000"]),
}

UNHELD_VALUES: dict[str, Any] = {
    "not": {"type": "string"},
    "if": {"type": "string"},
    "then": {},
    "else": {},
    "propertyNames": {"pattern": "^a"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "uniqueItems": True,
    "contains": {"type": "integer"},
    "minContains": 1,
    "maxContains": 2,
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
}


@pytest.mark.parametrize(
    ("schema", "text"), [pytest.param(s, t, id=f"{k}-{t}") for k, s, texts, _ in HELD for t in texts]
)
def test_a_text_that_conforms_is_allowed(schema: dict[str, Any], text: str) -> None:
    assert conforms(json_schema(schema), text)


@pytest.mark.parametrize(
    ("schema", "text"), [pytest.param(s, t, id=f"{k}-{t}") for k, s, _, texts in HELD for t in texts]
)
def test_a_text_that_does_not_conform_is_not_allowed(schema: dict[str, Any], text: str) -> None:
    assert not conforms(json_schema(schema), text)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_holds(name: str) -> None:
    good, bad = FORMAT_TEXTS[name]
    grammar = json_schema({"type": "string", "format": name})

    assert [text for text in good if not conforms(grammar, f'"{text}"')] == []
    assert [text for text in bad if conforms(grammar, f'"{text}"')] == []


@pytest.mark.parametrize("keyword", sorted(UNHELD))
@pytest.mark.parametrize("draft", [None, "http://json-schema.org/draft-04/schema#"])
def test_a_keyword_that_cannot_be_held_is_named_with_its_place(keyword: str, draft: str | None) -> None:
    inner = {"type": ["object", "array"], keyword: UNHELD_VALUES[keyword]}
    schema = {"type": "object", "properties": {"age": {"$ref": "#/$defs/inner"}}, "$defs": {"inner": inner}}

    with pytest.raises(GrammarError) as error:
        check_grammar(json_schema(schema if draft is None else {"$schema": draft, **schema}))

    assert f"`{keyword}`" in error.value.message
    assert "`$defs.inner`" in error.value.message


@pytest.mark.parametrize("value", ["idn-email", "regex", "int32", "unknown", 7])
def test_a_format_that_is_not_known_is_refused_by_name(value: object) -> None:
    with pytest.raises(GrammarError, match=r"`format`.*`properties\.x`"):
        check_grammar(json_schema({"type": "object", "properties": {"x": {"type": "string", "format": value}}}))


@pytest.mark.parametrize(
    "schema", [{"uniqueItems": False}, {"unevaluatedProperties": True}, {"unevaluatedItems": True}], ids=str
)
def test_what_restricts_nothing_is_accepted(schema: dict[str, Any]) -> None:
    assert conforms(json_schema({"type": "array", **schema}), "[1, 1]")


@pytest.mark.parametrize("kind", ["integer", ["integer", "null"]], ids=str)
@pytest.mark.parametrize("value", ["int32", "int64", "double", "date", "date-time"])
def test_a_format_restricts_text_alone(kind: Any, value: str) -> None:
    grammar = json_schema({"type": kind, "format": value})

    assert conforms(grammar, "5")
    assert not conforms(grammar, '"5"')


@pytest.mark.parametrize("kind", [None, "string", ["string", "integer"]], ids=str)
def test_a_format_of_what_may_be_text_is_refused_when_it_is_not_known(kind: Any) -> None:
    with pytest.raises(GrammarError, match="`format`"):
        check_grammar(json_schema({"format": "int64"} | ({"type": kind} if kind else {})))


def test_a_property_may_have_a_keyword_s_name() -> None:
    grammar = json_schema({"type": "object", "properties": {"not": INTEGER, "if": {"enum": ["contains"]}}})

    assert conforms(grammar, '{"not": 1, "if": "contains"}')


def test_every_row_of_the_table_is_tested() -> None:
    held = {name for keyword in KEYWORDS if keyword.holds for name in keyword.names}

    assert held - {"format"} <= {keyword for keyword, *_ in HELD}
    assert set(FORMATS) == set(FORMAT_TEXTS)
    assert set(UNHELD_VALUES) == UNHELD


def test_the_readme_has_the_table() -> None:
    text = README.read_text(encoding="utf-8")

    assert f"<!-- schema-keywords -->\n{keywords_table()}\n<!-- /schema-keywords -->" in text, (
        "run `python -m tasks.schema_keywords` and put its output between the marks"
    )
