"""From texts to token lists that fit the window, and on to groups for one decode. Pure but for the tokenizer given."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

#: A window's worth of text is looked for in this many characters first: tokens are rarely longer, and tokenizing a
#: whole book to keep its first page would take seconds.
CHARACTERS_PER_TOKEN = 32


class Marks(NamedTuple):
    """The control tokens that the model wants around every text: CLS and SEP, BOS and EOS, or some of them."""

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


class TokenizedText(NamedTuple):
    tokens: list[int]  #: with the marks; never longer than the window
    truncated: bool


def marks_around(plain: Sequence[int], marked: Sequence[int]) -> Marks:
    """The marks, from one text tokenized without and with them."""
    for start in range(len(marked) - len(plain) + 1):
        if list(marked[start : start + len(plain)]) == list(plain):
            return Marks(tuple(marked[:start]), tuple(marked[start + len(plain) :]))
    return Marks()


def fit_to_window(tokenize: Callable[[str], list[int]], text: str, window: int, marks: Marks) -> TokenizedText:
    """The text's tokens between the marks; what does not fit is cut before the end mark, so that it stays last."""
    room = max(window - len(marks.start) - len(marks.end), 0)
    head = text[: room * CHARACTERS_PER_TOKEN]
    plain = tokenize(head)
    if len(head) < len(text) and len(plain) < 2 * room:
        # Unusually long tokens. At twice the room the cut through a word at the head's end is far behind the window's.
        plain = tokenize(text)
    return TokenizedText([*marks.start, *plain[:room], *marks.end], truncated=len(plain) > room)


def group_texts(costs: Sequence[int], max_texts: int, max_tokens: int) -> list[range]:
    """Neighbouring texts that go into one decode, in order: at most `max_texts`, costing `max_tokens` together."""
    groups: list[range] = []
    begin = n_tokens = 0
    for index, cost in enumerate(costs):
        if index > begin and (index - begin == max_texts or n_tokens + cost > max_tokens):
            groups.append(range(begin, index))
            begin, n_tokens = index, 0
        n_tokens += cost
    if costs:
        groups.append(range(begin, len(costs)))
    return groups
