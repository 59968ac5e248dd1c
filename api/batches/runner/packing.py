"""How many texts go into one slice. Pure.

A slice holds the worker until it ends, so it is to end within about a second: its tokens are bounded by what was
measured of the slices before it, and by LIS_BATCH_SLICE_TOKENS.
"""

from collections import deque
from typing import Any

from tasks.contracts import Rates

TARGET_S = 1.0  #: of one slice
FIRST_TOKENS = 256  #: of a slice before anything is measured
LEAST_TOKENS = 16
GROWTH = 2.0  #: a slice has at most so many times the tokens of the largest before it
NEWEST = 0.4  #: how much the last slice counts
TOKENS_PER_CHAR = 0.33  #: before it is measured
MARKS = 2  #: tokens that a model puts around a text
MAX_TEXTS = 512
MAX_VECTOR_BYTES = 2 * 1024 * 1024  #: of one message


class Pace:
    """What is known of one embedding model's speed."""

    def __init__(self, slice_tokens: int) -> None:
        self._slice_tokens = slice_tokens
        self._tokens_per_s = 0.0
        self._tokens_per_char = TOKENS_PER_CHAR
        self._largest = 0.0
        self._is_measured = False
        self.n_ctx = 0  #: tokens that a text has at most; 0: not known
        self.width = 0

    def begin_with(self, rates: Rates) -> None:
        """What a worker has measured holds until a slice of ours has ended."""
        if self._is_measured or not rates.embedding_chars_per_s or not rates.embedding_tokens_per_s:
            return
        self._tokens_per_char = rates.embedding_tokens_per_s / rates.embedding_chars_per_s
        self._tokens_per_s = rates.embedding_tokens_per_s
        self._largest = self._tokens_per_s * TARGET_S / GROWTH

    def measured(self, chars: int, tokens: int, busy_s: float) -> None:
        """A slice has ended that kept the engine busy for `busy_s`."""
        if busy_s <= 0 or not chars or not tokens:
            return
        part = NEWEST if self._is_measured else 1.0
        self._tokens_per_s += part * (tokens / busy_s - self._tokens_per_s)
        self._tokens_per_char += part * (tokens / chars - self._tokens_per_char)
        self._largest = max(self._largest, float(tokens))
        self._is_measured = True

    def budget(self) -> int:
        """Tokens of the next slice."""
        if not self._tokens_per_s:
            return min(FIRST_TOKENS, self._slice_tokens)
        wanted = min(self._tokens_per_s * TARGET_S, self._largest * GROWTH)
        return min(self._slice_tokens, max(LEAST_TOKENS, int(wanted)))

    def tokens_of(self, text: str) -> int:
        """Estimated, from its length."""
        tokens = MARKS + round(len(text) * self._tokens_per_char)
        return min(tokens, self.n_ctx) if self.n_ctx else tokens

    def max_texts(self) -> int:
        return min(MAX_TEXTS, max(1, MAX_VECTOR_BYTES // (4 * self.width))) if self.width else MAX_TEXTS


def pack(items: "deque[Any]", pace: Pace) -> list[Any]:
    """Take the next slice out of `items`, each of which has a `text`: one at least."""
    budget, max_texts = pace.budget(), pace.max_texts()
    packed: list[Any] = []
    while items and len(packed) < max_texts:
        budget -= pace.tokens_of(items[0].text)
        if packed and budget < 0:
            break
        packed.append(items.popleft())
    return packed
