"""Keeps what users wrote apart from what the chat template wrote, in one rendered prompt. Pure.

A user's `<|im_end|>` must not become the control token of that name. Before rendering, `Guard.hide` replaces one
character of every such spelling in the users' texts by a private-use stand-in of the same length, so that templates may
trim, cut, join and search them. After rendering, every control token that is still spelled out was written by the
template; `Guard.split` gives the pieces, those that hold a stand-in to be tokenized as plain text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

STAND_INS = range(0xF0000, 0xFF000)  #: plane 15 is private use: no template and no tokenizer gives it a meaning
ANY_STAND_IN = re.compile(f"[{chr(STAND_INS.start)}-{chr(STAND_INS.stop - 1)}]")
BLOCK = 4096  #: stand-ins of one request come from one block that its texts do not use


class SpecialToken(NamedTuple):
    id: int
    text: str
    strips_left: bool = False  #: blanks before it are dropped
    strips_right: bool = False
    is_unknown: bool = False


class Piece(NamedTuple):
    text: str
    parse_special: bool


class SpecialTexts:
    """The spellings of a vocabulary's control tokens. Made once for a model."""

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        self.by_text = {token.text: token for token in tokens}
        longest_first = sorted(self.by_text, key=len, reverse=True)
        spellings = "|".join(map(re.escape, longest_first)) or r"(?!)"
        #: as llama.cpp finds them
        self.exact = re.compile(spellings)
        #: with what a template's filters for case might make of them
        self.loose = re.compile(spellings, re.IGNORECASE)
        self._prefixes = {text[:end] for text in longest_first for end in range(1, len(text))}
        self._suffixes = {text[start:] for text in longest_first for start in range(1, len(text))}
        self._longest = len(longest_first[0]) if longest_first else 0
        self.edge_characters = sorted({character for text in longest_first for character in (text[0], text[-1])})

    def open_at_end(self, text: str) -> int | None:
        """Where a spelling begins that what follows `text` might complete."""
        starts = range(max(0, len(text) - self._longest), len(text))
        return next((start for start in starts if text[start:] in self._prefixes), None)

    def open_at_start(self, text: str) -> int | None:
        """Where a spelling ends (its last character) that what precedes `text` might complete."""
        ends = range(min(self._longest, len(text)), 0, -1)
        return next((end - 1 for end in ends if text[:end] in self._suffixes), None)


class Guard:
    """The stand-ins of one request."""

    def __init__(self, special: SpecialTexts, values: Any) -> None:
        """`values`: all that the user sent and the template sees. Its texts decide which stand-ins are free."""
        self._special = special
        used = {ord(found) // BLOCK for text in texts_in(values) for found in ANY_STAND_IN.findall(text)}
        blocks = range(STAND_INS.start // BLOCK, STAND_INS.stop // BLOCK)
        # A text that uses all blocks gets some of its private characters replaced: nonsense, and still plain text.
        first = next((block for block in blocks if block not in used), blocks.start) * BLOCK
        self._stand_in = {character: chr(first + n) for n, character in enumerate(special.edge_characters)}
        self._original = str.maketrans({stand_in: character for character, stand_in in self._stand_in.items()})
        self._any_stand_in = re.compile(f"[{chr(first)}-{chr(first + BLOCK - 1)}]")

    def hide(self, value: Any) -> Any:
        """`value` with all texts in it hidden, keys too. Roles and types are words that templates compare."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, dict):
            return {self.hide(key): item if key in ("role", "type") else self.hide(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> str:
        return text.translate(self._original)

    def split(self, prompt: str) -> list[Piece]:
        """The prompt in pieces. Tokenized one by one they give what the whole gives when it hides nothing."""
        if not self._any_stand_in.search(prompt):
            return [Piece(prompt, parse_special=True)]
        pieces: list[Piece] = []
        start = 0  # of what is not yet in a piece
        for text_start, text_end in self._plain_stretches(prompt):
            stretch = prompt[text_start:text_end]
            if self._any_stand_in.search(stretch):
                pieces.append(Piece(prompt[start:text_start], parse_special=True))
                pieces.append(Piece(self.reveal(self._strip(prompt, text_start, text_end)), parse_special=False))
                start = text_end
        pieces.append(Piece(prompt[start:], parse_special=True))
        return [piece for piece in pieces if piece.text]

    def _hide_text(self, text: str) -> str:
        hits = {match.start() for match in self._special.loose.finditer(text)}
        hits |= {hit for hit in (self._special.open_at_end(text), self._special.open_at_start(text)) if hit is not None}
        if not hits:
            return text
        return "".join(
            self._stand_in.get(character, character) if index in hits else character
            for index, character in enumerate(text)
        )

    def _plain_stretches(self, prompt: str) -> Iterator[tuple[int, int]]:
        """Start and end of what lies between the template's control tokens."""
        start = 0
        for match in self._special.exact.finditer(prompt):
            yield start, match.start()
            start = match.end()
        yield start, len(prompt)

    def _strip(self, prompt: str, start: int, end: int) -> str:
        """A stretch without the blanks that its neighbours swallow."""
        text = prompt[start:end]
        before = next((t for t in self._special.by_text.values() if prompt.endswith(t.text, 0, start)), None)
        after = next((t for t in self._special.by_text.values() if prompt.startswith(t.text, end)), None)
        text = text.lstrip() if before and before.strips_right else text
        return text.rstrip() if after and after.strips_left else text


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
