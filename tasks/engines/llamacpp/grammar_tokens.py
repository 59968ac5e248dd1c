"""A model's vocabulary as llguidance wants it, and grammars compiled for it."""

import ctypes
import logging
import threading
from collections.abc import Iterable
from typing import Any

import llama_cpp
from llguidance import LLMatcher, LLTokenizer

from tasks.engines.base import InvalidRequest
from tasks.engines.llamacpp.vocab import Vocab, tokenize
from tasks.grammars import parser_limits

log = logging.getLogger(__name__)

MARK = b"\xff"  #: what llguidance takes for a token that is no text begins with it

#: llama_tokenize: vocabulary, text, its bytes, where tokens go, room there, add_special, parse_special -> tokens
_TOKENIZE = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.c_int32,
    ctypes.c_bool,
    ctypes.c_bool,
)


class GrammarTokens:
    """The vocabulary as llguidance wants it, made at the first grammar. Any thread may use it while the model lives.

    Tokens that are no text (control tokens, and user-defined ones in angle brackets) are in a grammar only by name.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._callback: Any = None  # llguidance calls it as long as there is a tokenizer

    def compile(self, grammar: str, param: str) -> LLMatcher:
        """A matcher that no token has gone into. Raises InvalidRequest, which names `param`."""
        matcher = LLMatcher(self.tokenizer(), grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            log.warning("a grammar cannot be used", extra={"reason": matcher.get_error()})
            raise InvalidRequest("The grammar that this asks for cannot be used with this model.", param)
        return matcher

    def tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._make()
            return self._tokenizer

    def _make(self) -> LLTokenizer:
        vocab = self._vocab
        # The end is a token of its own behind the vocabulary: which of the model's tokens stand for it is decided here.
        tokens = [*map(vocab.grammar_bytes, range(vocab.n_tokens)), MARK + b"<|end of the grammar|>"]
        tokenizer: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined] # llguidance 1.9: not in its stub
            tokens=tokens,
            vocab_ptr=vocab.handle,
            tokenize_fptr=self._tokenize_function(tokens),
            eos_token=vocab.n_tokens,
            slices=None,
        )
        return tokenizer

    def _tokenize_function(self, tokens: list[bytes]) -> int | None:
        """Address of what llguidance tokenizes a text with that a grammar leaves no choice about.

        llama.cpp's own reads user-defined tokens in any text, `<think>` in a constant of a schema, too. To a grammar
        they are no text, so there they are spelled out.
        """
        spelled = _spelled_out(tokens, self._vocab.user_defined)
        if not spelled:
            return ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value

        def tokenize_text(
            vocab: int, text: int, length: int, out: Any, size: int, add_special: bool, parse_special: bool
        ) -> int:
            data = ctypes.string_at(text, length)
            found = tokenize(vocab, data, add_special=add_special, parse_special=parse_special)
            plain = [part for token in found for part in spelled.get(token, (token,))]
            if len(plain) > size:
                return -len(plain)
            ctypes.memmove(out, (ctypes.c_int32 * len(plain))(*plain), 4 * len(plain))
            return len(plain)

        self._callback = _TOKENIZE(tokenize_text)
        return ctypes.cast(self._callback, ctypes.c_void_p).value


def _spelled_out(tokens: list[bytes], marks: Iterable[int]) -> dict[int, list[int]]:
    """For those of `marks` that are no text to a grammar: the longest tokens of text that give the same."""
    found = [token for token in marks if tokens[token].startswith(MARK)]
    if not found:
        return {}
    by_text = {text: token for token, text in enumerate(tokens) if text and not text.startswith(MARK)}
    spelled = {}
    for token in found:
        rest, parts = tokens[token][len(MARK) :], []
        while rest:
            end = next((end for end in range(len(rest), 0, -1) if rest[:end] in by_text), None)
            if end is None:
                break
            parts.append(by_text[rest[:end]])
            rest = rest[end:]
        spelled[token] = [token] if rest else parts
    return spelled
