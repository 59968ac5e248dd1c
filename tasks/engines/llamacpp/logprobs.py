"""Log probabilities of generated tokens, and which text each of them belongs to."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tasks.contracts import TokenLogprob
from tasks.engines.base import Float32Array

LEAST = -9999.0  #: stands for minus infinity, as in OpenAI's answers


class Distribution:
    """What the model thinks comes next, before anything restricts it."""

    def __init__(self, logits: Float32Array, n_top: int) -> None:
        """Reads the logits now, but for `logprob_of`, which looks up one of them later."""
        self._logits = logits
        peak = logits.max()
        self._normalizer = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
        self.top = [(int(token), self.logprob_of(int(token))) for token in _best(logits, n_top)]

    def logprob_of(self, token: int) -> float:
        logprob = float(self._logits[token]) - self._normalizer
        return min(logprob, 0.0) if logprob > LEAST else LEAST  # not so for what is not a number

    def of(self, token: int, piece: bytes, spelling: Callable[[int], bytes]) -> TokenLogprob:
        """`piece`: the token's text in this place; `spelling` gives that of the alternatives."""
        return TokenLogprob(piece, self.logprob_of(token), [(spelling(other), logprob) for other, logprob in self.top])


def _best(logits: Float32Array, n: int) -> list[int]:
    """The `n` most probable tokens, best first; among equals the lowest, which llama.cpp's greedy sampler takes."""
    n = min(n, len(logits))
    if not n:
        return []
    least = np.partition(logits, len(logits) - n)[len(logits) - n]
    tokens = np.flatnonzero(logits >= least)
    order = np.lexsort((tokens, -logits[tokens]))
    return [int(token) for token in tokens[order[:n]]]


class Visible(NamedTuple):
    text: str
    logprobs: list[TokenLogprob]


class TokenAligner:
    """Hands out text in whole tokens, each with its log probability.

    Tokens go in with the characters that each completes; then parts of the text they make, in order, with gaps where
    the reader of the answer took marks or stop texts out. A token of which only a part is to be seen is cut to that.
    """

    def __init__(self) -> None:
        self._tokens: deque[tuple[TokenLogprob, str]] = deque()
        self._ready = ""  # text of the first tokens that waits for the rest of the last of them

    def add(self, token: TokenLogprob, characters: str) -> None:
        """`characters`: none when the token ends within one; that is the next token's."""
        self._tokens.append((token, characters))

    def take(self, text: str) -> Visible:
        """`text` is the next part to be seen."""
        flushed = self._skip_to(text)
        self._ready += text
        whole = self._pop_whole()
        return Visible(flushed.text + whole.text, flushed.logprobs + whole.logprobs)

    def drop(self, text: str) -> Visible:
        """`text` is the next part, and not the answer's. What is handed out came before it."""
        flushed = self._skip_to(text)
        self._cut_front(len(text))
        return flushed

    def drop_all_but_last(self) -> Visible:
        """What came before the token that came last is not the answer's, but for what waits."""
        flushed = self.finish()
        while len(self._tokens) > 1:
            self._tokens.popleft()
        return flushed

    def finish(self) -> Visible:
        """What waits for the rest of its token leaves without it."""
        text, self._ready = self._ready, ""
        logprobs: list[TokenLogprob] = []
        rest = len(text)
        while rest:
            token, characters = self._tokens.popleft()
            seen = characters[:rest]
            rest -= len(seen)
            logprobs.append(_with_text(token, seen) if seen != characters else token)
            if seen != characters:
                self._tokens.appendleft((_with_text(token, characters[len(seen) :]), characters[len(seen) :]))
        return Visible(text, logprobs)

    def _skip_to(self, text: str) -> Visible:
        """Forget what lies before `text`."""
        ahead = "".join(characters for _, characters in self._tokens)
        start = ahead.find(text, len(self._ready))
        skipped = start - len(self._ready)
        if skipped <= 0:
            return Visible("", [])
        flushed = self.finish()
        self._cut_front(skipped)
        return flushed

    def _cut_front(self, n_characters: int) -> None:
        while n_characters and self._tokens:
            token, characters = self._tokens.popleft()
            if len(characters) > n_characters:
                rest = characters[n_characters:]
                self._tokens.appendleft((_with_text(token, rest), rest))
                return
            n_characters -= len(characters)

    def _pop_whole(self) -> Visible:
        logprobs: list[TokenLogprob] = []
        n_whole = n_characters = 0
        for index, (_, characters) in enumerate(self._tokens):
            if n_characters + len(characters) > len(self._ready):
                break
            n_characters += len(characters)
            if characters:
                n_whole = index + 1
        logprobs.extend(self._tokens.popleft()[0] for _ in range(n_whole))
        text, self._ready = self._ready[:n_characters], self._ready[n_characters:]
        return Visible(text, logprobs)


def _with_text(token: TokenLogprob, text: str) -> TokenLogprob:
    return TokenLogprob(text.encode(), token.logprob, token.top)
