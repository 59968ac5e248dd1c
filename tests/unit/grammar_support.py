"""Texts against grammars, byte by byte, with the compiled grammar itself."""

import json
from typing import Any

from llguidance import LLMatcher

from tasks.contracts import Grammar, GrammarKind
from tasks.grammars import _byte_tokenizer, llguidance_grammar, parser_limits


def json_schema(schema: Any) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(schema))


def gbnf(source: str) -> Grammar:
    return Grammar(kind=GrammarKind.GBNF, source=source)


def conforms(grammar: Grammar | str, text: str) -> bool:
    """The grammar allows each byte of the text, and the end after it."""
    compiled = grammar if isinstance(grammar, str) else llguidance_grammar(grammar)
    matcher = LLMatcher(_byte_tokenizer(), compiled, log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def allowed_prefix(grammar: Grammar, text: str) -> str:
    """As much of the text as the grammar allows."""
    matcher = LLMatcher(_byte_tokenizer(), llguidance_grammar(grammar), log_level=0, limits=parser_limits())
    taken = matcher.try_consume_tokens(list(text.encode()))
    return text.encode()[:taken].decode(errors="ignore")
