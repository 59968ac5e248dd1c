"""What a grammar accepts, on a vocabulary of single bytes and the marks as control tokens."""

from functools import cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from tasks.grammars import parser_limits

MARKS = {
    "<tool_call>": 257,
    "</tool_call>": 258,
    "[TOOL_CALLS]": 259,
    "[ARGS]": 260,
    "<|python_tag|>": 261,
    "<think>": 262,
}


class _Vocabulary:
    eos_token_id = 256
    bos_token_id = None

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>", *(mark.encode() for mark in MARKS)]
        self.special_token_ids = [256, *MARKS.values()]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def special(mark: str) -> int | None:
    return MARKS.get(mark)


def no_special(mark: str) -> int | None:
    return None


def accepts(grammar: str, text: str, marks_are_tokens: bool) -> bool:
    """Is the text a whole one of the grammar? Fails when the grammar cannot be compiled."""
    matcher = LLMatcher(_tokenizer(), grammar, log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    tokens = _tokens(text) if marks_are_tokens else list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Vocabulary()))


def _tokens(text: str) -> list[int]:
    tokens: list[int] = []
    while text:
        mark = next((mark for mark in MARKS if text.startswith(mark)), text[0])
        tokens += [MARKS[mark]] if mark in MARKS else mark.encode()
        text = text[len(mark) :]
    return tokens
