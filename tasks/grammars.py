"""What an answer must conform to, as llguidance takes it. Pure: the API checks with it, the engine samples with it.

llguidance is imported where it is used first, so that an API process that meets no grammar does without it.
"""

import json
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, ClassVar

from tasks.contracts import Grammar, GrammarKind
from tasks.gbnf import lark_from_gbnf
from tasks.grammar_error import GrammarError
from tasks.json_schema import Schema, at, json_schema_options, prepared_schema, referred, subschemas

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

__all__ = [
    "GrammarError",
    "check_compiled",
    "check_grammar",
    "json_schema_options",
    "llguidance_grammar",
    "parser_limits",
    "prepared_schema",
]

MAX_GRAMMAR_SYMBOLS = 50_000  #: 1000 properties have 10,000; twice this takes a third of a second to compile
MAX_STEP_ITEMS = 20_000  #: per token; 80 ms, where a grammar for JSON takes 4
MAX_LOCATED = 300  #: schemas that are compiled one by one to say where a fault is
CACHED = 16  #: of at most 256 KiB each


def llguidance_grammar(grammar: Grammar) -> str:
    """What `LLMatcher` takes; give it `parser_limits()` too. Up to 0.3 s for the largest. Raises GrammarError."""
    return _compiled(grammar)


def check_grammar(grammar: Grammar) -> None:
    """Raises GrammarError when the grammar cannot be enforced. As slow as `llguidance_grammar`; they share a cache."""
    _compiled(grammar)


def check_compiled(compiled: str) -> str:
    """Why llguidance cannot use this grammar; empty: it can. In the library's words, not for clients."""
    from llguidance import LLMatcher

    matcher = LLMatcher(_byte_tokenizer(), compiled, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        return matcher.get_error()
    if matcher.is_stopped() and not matcher.is_accepting():
        return "NoExtension"
    return ""


@cache
def parser_limits() -> "LLParserLimits":
    """Bounds on what one grammar may cost, in time and in memory. One that meets a bound while it is followed puts the
    matcher into its error state."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_grammar_size=MAX_GRAMMAR_SYMBOLS, step_max_items=MAX_STEP_ITEMS, verbose_errors=False)


@lru_cache(maxsize=CACHED)
def _compiled(grammar: Grammar) -> str:
    if grammar.kind is GrammarKind.GBNF:
        return _from_gbnf(grammar.source)
    if grammar.kind is GrammarKind.JSON_OBJECT:
        return _from_schema({"type": "object"})
    return _from_schema(grammar.source)


def _from_gbnf(source: str) -> str:
    from llguidance import LLMatcher

    compiled = LLMatcher.grammar_from_lark(lark_from_gbnf(source))
    problem = check_compiled(compiled)
    if problem:
        if any(mark in problem for mark, words in _REASONS if words == _TOO_LARGE):
            raise GrammarError("The grammar is too large to be enforced.")
        if "NoExtension" in problem:
            raise GrammarError("No text conforms to the grammar.")
        raise GrammarError(f"The grammar cannot be used: {_first_line(problem)}.")
    return compiled


def _from_schema(source: str | Schema) -> str:
    schema = prepared_schema(source)
    compiled, problem = _try_schema(schema)
    if problem:
        path, keyword = _locate(schema, problem)
        raise GrammarError(_schema_message(problem, path, keyword))
    return compiled


def _try_schema(schema: Schema) -> tuple[str, str]:
    from llguidance import LLMatcher

    try:
        compiled = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    except ValueError as exc:
        return "", str(exc)
    return compiled, check_compiled(compiled)


def _schema_message(problem: str, path: str, keyword: str) -> str:
    reason = _first_line(problem).removeprefix(UNSATISFIABLE).replace(" f64 ", " a number ")
    for mark, words in _REASONS:
        if mark in problem:
            reason = words
            break
    if reason == _TOO_LARGE:
        return "The JSON schema is too large to be enforced."
    if keyword:
        return f"The JSON schema's `{keyword}`{at(path)} cannot be enforced: {reason}."
    return f"The JSON schema{at(path)} cannot be enforced: {reason}."


UNSATISFIABLE = "Unsatisfiable schema: "
_TOO_LARGE = "it is too large"
_REASONS = (
    ("schema too large", _TOO_LARGE),
    ("too big", _TOO_LARGE),
    ("too complex", _TOO_LARGE),
    ("Too many", _TOO_LARGE),
    ("too many", _TOO_LARGE),
    ("look-around", "look-around is not supported"),
    ("lookarounds", "look-around, `\\b`, and `^` or `$` within the pattern are not supported"),
    ("regex parse error", "it is not a regular expression that can be enforced"),
    ("Regex is empty", "no text conforms to its pattern, format and length"),
    ("Unable to determine", "its pattern, format and length are too costly to combine"),
    ("oneOf constraints", "two of its alternatives may hold at once; use `anyOf`"),
    ("are not disjoint", "two of its patterns can match the same name"),
    ("min/maxProperties only", "with `properties` that are not all required it cannot be counted"),
    ("Pointer", "it points to nothing in this schema"),
    ("Resource", "only references within the schema are followed"),
    ("circular references", "it refers to itself, with other keywords beside it"),
    ("NoExtension", "nothing conforms to it"),
)

_KEYWORDS_BY_MARK = (
    ("patternProperty", ("patternProperties",)),
    ("egex|look", ("pattern", "patternProperties", "format", "minLength", "maxLength")),
    ("Invalid type", ("type",)),
    ("is empty", ("anyOf", "oneOf", "enum", "type")),
    ("oneOf", ("oneOf",)),
    ("min/maxProperties", ("minProperties", "maxProperties")),
    ("Pointer|Resource|reference", ("$ref",)),
    ("NoExtension", ("$ref", "pattern", "enum", "const", "allOf")),
    ("multiple of", ("multipleOf",)),
    ("incompatible", ("allOf", "$ref", "anyOf", "oneOf", "enum", "const")),
)


def _locate(root: Schema, problem: str) -> tuple[str, str]:
    """Where the fault is, and which keyword's: goes down as long as a schema within fails for the same reason."""
    path, schema = "", root
    seen: set[int] = set()
    tried = 0
    while id(schema) not in seen:
        seen.add(id(schema))
        inner = [(f"{path}.{where}" if path else where, value) for where, value in subschemas(schema)]
        target = referred(root, schema)
        for inner_path, value in [*inner, *([target] if target else [])]:
            tried += 1
            if isinstance(value, dict) and tried <= MAX_LOCATED and _fails_alike(root, value, problem):
                path, schema = inner_path, value
                break
    return path, _keyword_of(problem, schema)


def _fails_alike(root: Schema, schema: Schema, problem: str) -> bool:
    definitions = {k: v for k, v in root.items() if k in ("$defs", "definitions")}
    _, inner_problem = _try_schema({**definitions, **schema, "x-guidance": json_schema_options()})
    reason = inner_problem.removeprefix(UNSATISFIABLE)
    return bool(reason) and reason in problem


def _keyword_of(problem: str, schema: Schema) -> str:
    for mark, keywords in _KEYWORDS_BY_MARK:
        if re.search(mark, problem):
            return next((keyword for keyword in keywords if keyword in schema), keywords[0])
    return next((word for word in re.findall(r"[A-Za-z$]+", problem) if word in schema), "")


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].rstrip(".")


class _Bytes:
    """A vocabulary of single bytes: enough to build any grammar and look at its first step."""

    eos_token_id = 256
    bos_token_id = None
    tokens: ClassVar = [bytes([i]) for i in range(256)] + [b"<eos>"]
    special_token_ids: ClassVar = [256]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def _byte_tokenizer() -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()))
