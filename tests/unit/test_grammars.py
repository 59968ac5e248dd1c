"""Grammars: JSON as it is written, schemas as clients send them, GBNF, and what is refused."""

import json
import subprocess
import sys
import time
from datetime import date
from enum import StrEnum
from typing import Any, Literal

import pytest
from llguidance import LLMatcher
from pydantic import BaseModel, Field

from tasks.contracts import Grammar, GrammarKind
from tasks.grammars import GrammarError, check_grammar, json_schema_options, llguidance_grammar, prepared_schema
from tests.unit.grammar_support import allowed_prefix, conforms, gbnf, json_schema

ANY_OBJECT = Grammar(kind=GrammarKind.JSON_OBJECT)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a":1,"b":[true,null]}',
        '{"a": 1, "b": {"c": []}}',
        '{\n  "a": [\n    1,\n    2\n  ]\n}',
        '{"é": "\\n😀"}',
    ],
)
def test_json_mode_takes_an_object_however_it_is_laid_out(text: str) -> None:
    assert conforms(ANY_OBJECT, text)


@pytest.mark.parametrize(
    "text", ["[]", "1", '"a"', "{", '{"a":1', "{} ", " {}", '{"a":01}', '{"a":tru}', '{"a":"\x01"}']
)
def test_json_mode_takes_nothing_but_one_object(text: str) -> None:
    assert not conforms(ANY_OBJECT, text)


@pytest.mark.parametrize("blank", [" ", "\n", "\t", "\r\n", "\n "])
@pytest.mark.parametrize("before", ["{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":[', '{"a":[1'])
def test_white_space_ends(before: str, blank: str) -> None:
    taken = allowed_prefix(ANY_OBJECT, before + blank * 300)

    assert len(taken) <= len(before) + 21


def test_nesting_is_not_limited() -> None:
    assert conforms(ANY_OBJECT, '{"a":' * 500 + "1" + "}" * 500)


@pytest.mark.parametrize("schema", [True, {}])
def test_a_schema_that_says_nothing_takes_any_value(schema: Any) -> None:
    assert all(conforms(json_schema(schema), text) for text in ("1", '"a"', "[]", "{}", "null"))


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Order(BaseModel):
    """A model with what pydantic makes of its usual types."""

    id: int = Field(gt=0, description="a number")
    day: date
    colour: Colour
    pet: Cat | Dog = Field(discriminator="kind")
    tags: list[str] = Field(max_length=2)
    prices: dict[str, float] = {}
    pair: tuple[int, str] = (1, "x")


def test_a_pydantic_model_s_schema_holds() -> None:
    grammar = json_schema(Order.model_json_schema())
    text = '{"id": 1, "day": "2024-02-29", "colour": "red", "pet": {"kind": "cat", "lives": 9}, "tags": ["a"]}'

    assert conforms(grammar, text)
    assert Order.model_validate_json(text).pet == Cat(kind="cat", lives=9)
    for wrong, right in [
        ('"lives": 0', '"lives": 9'),
        ("green", "red"),
        ("2023-02-29", "2024-02-29"),
        ('"id": 0', '"id": 1'),
    ]:
        assert not conforms(grammar, text.replace(right, wrong))


def test_a_strict_schema_of_openai_holds() -> None:
    step = {
        "type": "object",
        "properties": {"explanation": {"type": "string"}, "output": {"type": ["string", "null"]}},
        "required": ["explanation", "output"],
        "additionalProperties": False,
    }
    grammar = json_schema(
        {
            "type": "object",
            "properties": {"steps": {"type": "array", "items": {"$ref": "#/$defs/step"}}, "answer": {"type": "number"}},
            "required": ["steps", "answer"],
            "additionalProperties": False,
            "$defs": {"step": step},
        }
    )

    assert conforms(grammar, '{"steps": [{"explanation": "e", "output": null}], "answer": 4}')
    assert not conforms(grammar, '{"steps": [{"explanation": "e"}], "answer": 4}')


def test_texts_with_escapes_can_be_required() -> None:
    text = 'a\\u0001 \n\t\r\b\f"/'

    assert conforms(json_schema({"const": text}), json.dumps(text))


def test_a_schema_cannot_loosen_how_it_is_read() -> None:
    with pytest.raises(GrammarError, match="`not`"):
        check_grammar(json_schema({"x-guidance": {"lenient": True}, "not": {}}))
    grammar = json_schema({"x-guidance": {"whitespace_pattern": r"\s*"}, "type": "object"})

    assert not conforms(grammar, "{" + " " * 9 + "}")


def test_the_caller_s_schema_is_not_changed() -> None:
    schema = {"type": "string", "format": "date", "nullable": True, "$schema": "x"}
    before = json.dumps(schema)

    assert prepared_schema(schema)["x-guidance"] == json_schema_options()
    assert json.dumps(schema) == before


def test_an_embedded_schema_has_bounded_white_space_too() -> None:
    lark = f'start: "<t>" %json {json.dumps(prepared_schema({"type": "object"}))} "</t>"'
    grammar = LLMatcher.grammar_from_lark(lark)

    assert conforms(grammar, '<t>{"a": 1}</t>')
    assert not conforms(grammar, '<t>{"a":  1}</t>')


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"minimum": Infinity}', "not valid JSON"),
        ('{"const": "\\ud800"}', "JSON schema"),
        ("[]", "must be an object"),
        ("3", "must be an object"),
        ("false", "allows no value"),
        ("[" * 100_000, "nested"),
        (json.dumps(nested(70)), "nested deeper than 64"),
        (json.dumps({"enum": ["x" * 300_000]}), "longer than"),
        (json.dumps({"properties": {"age": {"minimum": "x"}}}), "`minimum` at `properties.age`"),
        (json.dumps({"properties": {"age": 3}}), "`properties.age`"),
        (json.dumps({"anyOf": [{"type": "string"}, {"type": "text"}]}), r"`type` at `anyOf\[1\]`"),
        (json.dumps({"$ref": "#/$defs/P", "$defs": {"P": {"pattern": "(?=x)"}}}), "`pattern` at `\\$defs.P`"),
        (json.dumps({"pattern": "("}), "`pattern`"),
        (json.dumps({"pattern": r"(a)\1"}), "`pattern`"),
        (json.dumps({"type": "string", "minLength": 3, "maxLength": 2}), "`minLength`"),
        (json.dumps({"type": "integer", "minimum": 3, "maximum": 2}), "`minimum`"),
        (json.dumps({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "`oneOf`"),
        (json.dumps({"allOf": [{"type": "string"}, {"type": "integer"}]}), "`allOf`"),
        (json.dumps({"enum": []}), "`enum`"),
        (json.dumps({"type": []}), "`type`"),
        (json.dumps({"required": "a"}), "`required`"),
        (json.dumps({"$ref": "#/$defs/none"}), r"`\$ref`"),
        (json.dumps({"$ref": "https://example.org/schema"}), r"`\$ref`"),
        (json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), r"`\$ref`"),
        (json.dumps({"type": "object", "minProperties": 2}), "`minProperties`"),
        (json.dumps({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}), "`minProperties`"),
        (json.dumps({"patternProperties": {"^a": {}, "a": {}}}), "`patternProperties`"),
        (json.dumps({"multipleOf": 0}), "`multipleOf`"),
        (json.dumps({"const": "a\x01"}), "`const`.*control character"),
        (json.dumps({"type": "object", "properties": {"p": {"enum": [["\x7f"]]}}}), r"`enum` at `properties\.p`"),
        (json.dumps({"type": "object", "properties": {"a\x1f": {}}}), "`properties`.*control character"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_by_keyword_and_place(source: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as error:
        check_grammar(Grammar(kind=GrammarKind.JSON_SCHEMA, source=source))

    assert not any(jargon in error.value.message for jargon in ("llguidance", "lexer", "SearchRegex", "f64", "coerce"))


REFS = {
    f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % 300}"}, {"properties": {f"k{i}": {"$ref": "#"}}}]}
    for i in range(300)
}
NASTY: dict[str, Any] = {
    "properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}},
    "multiple of a large number": {"type": "integer", "multipleOf": 9_999_991},
    "multiples that multiply": {"type": "integer", "allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
    "choices that multiply": {
        "allOf": [
            {"anyOf": [{"properties": {f"a{i}{j}": {}}, "required": [f"a{i}{j}"]} for j in range(9)]} for i in range(6)
        ]
    },
    "patterns that multiply": {"allOf": [{"pattern": "^(a|b)*a(a|b){20}$"}, {"pattern": "^(a|b)*b(a|b){19}$"}]},
    "a pattern that explodes": {"type": "string", "pattern": "^((x{1,1000}){1,1000}){1,1000}$"},
    "many values": {"enum": [f"value {i}" for i in range(10_000)]},
    "references": {"$ref": "#/$defs/d0", "$defs": REFS},
    "lengths": {"type": "array", "minItems": 10**9, "items": {"type": "string", "maxLength": 10**12}},
}


@pytest.mark.parametrize("name", NASTY)
def test_a_costly_schema_is_built_or_refused_soon(name: str) -> None:
    began = time.process_time()
    try:
        check_grammar(json_schema(NASTY[name]))
    except GrammarError as exc:
        assert "JSON schema" in exc.message

    assert time.process_time() - began < 2.0


LIST = 'root ::= item+\n\n# no line breaks\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n'
ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
CHESS = r"""# Moves in algebraic notation
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
# piece type, optional file and rank
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""
JSON = r"""root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (LIST, ["- a\n", "- a b\n- é\n"], ["- \n", "a\n", "- a"]),
        (ARITHMETIC, ["x = 1\n", "x+1*(y-2) = 3\ny_2=(z)\n\n"], ["x+ = 1\n", "x = \n"]),
        (CHESS, ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 O-O-O\n12. Qxd5+ exd8=Q#\n"], ["1. e4 e5\n", "1. e9 e5\n2. a1 a2\n"]),
        (JSON, ['{"a": [1, -2.5e1, {"b": null}], "c\\u00e9": "x" }'], ["[]", '{"a":}', '{"a":"\x7f"}']),
        (r'root ::= "\x41\u00e9\U0001F600\t\"\\" [\]\[]', ['Aé😀\t"\\]', 'Aé😀\t"\\['], ["Aé"]),
        ('root ::= "a"{2} "b"{1,} "c"{0,2} "d"{0} .', ["aab\n", "aabbcc."], ["abx", "aabcccx", "aabd"[:3]]),
        ("root ::= [^a-c-] [a&&b] [~-]", ["d&~", "db-"], ["a&~", "-&-", "d|~"]),
        ('root ::= [a-z]* "foo"', ["foo", "barfoo", "foofoo"], ["bar"]),
        ('root ::= x\nx ::= "a" y | "ab" "d"\ny ::= "bc" | "(" y ")"', ["abc", "abd", "a(bc)"], ["ab", "a(bc"]),
        ('root ::= list\nlist ::= list "," id | id\nid ::= [a-z]+', ["a,bc", "a"], ["a,", ","]),
        ('root ::= a-b A_b\na-b ::= "x"\nA_b ::= start\nstart ::= "y" |', ["x", "xy"], ["y"]),
        ('root ::= ( "a" | # one\n "b"\n # two\n) "c"\r\n', ["ac", "bc"], ["a"]),
        ('root ::= "" | "a" "" | .', ["", "a", "é"], ["aa"]),
    ],
    ids=[
        *("list", "arithmetic", "chess", "json", "escapes", "repetition", "classes", "regular", "two-ways"),
        *("left-recursion", "names", "layout", "empty"),
    ],
)
def test_gbnf_means_what_llama_cpp_means(source: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not conforms(gbnf(source), text)] == []
    assert [text for text in bad if conforms(gbnf(source), text)] == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "no rule `root`"),
        ('start ::= "a"', "no rule `root`"),
        ('root ::= "a"\nx ::= y', "line 2 uses the rule `y`"),
        ('root = "a"', "line 1.*`::=`"),
        ('\n\nroot ::= "a', 'line 3.*`"` is missing'),
        ("root ::= [a", "`]` is missing"),
        ('root ::= ("a"\n', "not closed"),
        ('root ::= "a")', "`\\)` cannot stand here"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2"),
        ('root ::= "a"{x}', "repetition"),
        ('root ::= "a"{99999999999999999999}', "more than 2000"),
        ('root ::= "\\q"', "no escape"),
        ('root ::= "\\uD800"', "no escape"),
        ("root ::= [z-a]", "no range"),
        ("root ::= <[12]>", "tokens"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ('root ::= "' + "a" * 100_000 + '"', "longer than"),
        ("root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(40)) + '\na40 ::= "x"?', "too large"),
    ],
)
def test_a_grammar_that_cannot_be_read_is_refused_with_the_line(source: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as error:
        check_grammar(gbnf(source))

    assert "lark" not in error.value.message.lower()


def test_equal_grammars_are_compiled_once() -> None:
    source = json.dumps({"type": "object", "properties": {f"once{i}": {"type": "string"} for i in range(900)}})
    first = llguidance_grammar(Grammar(kind=GrammarKind.JSON_SCHEMA, source=source))
    began = time.process_time()
    second = llguidance_grammar(Grammar(kind=GrammarKind.JSON_SCHEMA, source=source))

    assert second is first
    assert time.process_time() - began < 0.01


def test_importing_the_module_loads_no_library() -> None:
    code = "import sys, tasks.grammars, tasks.json_schema; sys.exit('llguidance' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
