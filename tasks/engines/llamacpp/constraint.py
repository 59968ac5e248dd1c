"""Which tokens a grammar allows next: llguidance's matcher, from one token to the next."""

import logging
from typing import Any

import numpy as np
from llguidance import LLMatcher

from tasks.engines.base import DecodeFailed
from tasks.engines.llamacpp.grammar_tokens import GrammarTokens
from tasks.engines.llamacpp.vocab import Vocab

log = logging.getLogger(__name__)

TokenIds = np.ndarray[Any, np.dtype[np.intp]]


class Constraint:
    """One choice's way through its grammar. Only the decode thread uses it.

    It is `active` between `begin` and `end`; a choice may go through its grammar several times.
    """

    def __init__(self, grammar_tokens: GrammarTokens, fresh: LLMatcher, vocab: Vocab) -> None:
        """`fresh`: as compiled. It is copied, never changed."""
        self._grammar_tokens = grammar_tokens
        self._fresh = fresh
        self._matcher: LLMatcher | None = None
        self._n_vocab = vocab.n_tokens
        self._mask = np.zeros(vocab.n_tokens // 32 + 1, dtype=np.int32)  # with the end's bit
        self._mask_bytes = self._mask.view(np.uint8)
        self._mask_address: int = self._mask.ctypes.data

    @property
    def active(self) -> bool:
        return self._matcher is not None

    def begin(self, beginning: bytes = b"") -> None:
        """What comes from now on follows the grammar. `beginning` has been generated already.

        Where that is against the grammar (blanks before it, in practice), the grammar holds for what comes after it.
        """
        matcher = self._fresh.deep_copy()
        if beginning:
            tokens = self._grammar_tokens.tokenizer().tokenize_bytes(beginning)
            if matcher.validate_tokens(tokens) == len(tokens):
                matcher.consume_tokens(tokens)
        self._matcher = matcher

    def end(self) -> None:
        self._matcher = None

    @property
    def may_end(self) -> bool:
        """What was taken is a whole text of the grammar."""
        assert self._matcher
        return self._matcher.is_accepting()

    @property
    def must_end(self) -> bool:
        """It is whole, and nothing can follow."""
        assert self._matcher
        return self._matcher.is_stopped() and self._checked(self._matcher).is_accepting()

    def allowed(self) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        """For each token 1 or 0: may it come next? Tokens that end the answer are never among them. A fresh array.

        Raises DecodeFailed: the grammar takes too much work here.
        """
        assert self._matcher
        self._matcher.unsafe_compute_mask_ptr(self._mask_address, self._mask.nbytes)
        self._checked(self._matcher)
        return np.unpackbits(self._mask_bytes, count=self._n_vocab, bitorder="little")

    def take(self, token: int) -> None:
        """`token` was chosen. Raises DecodeFailed: the grammar takes too much work here."""
        assert self._matcher
        self._matcher.consume_token(token)
        self._checked(self._matcher)

    def _checked(self, matcher: LLMatcher) -> LLMatcher:
        if matcher.is_error():
            log.warning("a grammar failed", extra={"reason": matcher.get_error()})
            raise DecodeFailed("The answer could not be kept to its grammar: that takes too much work at this point.")
        return matcher
