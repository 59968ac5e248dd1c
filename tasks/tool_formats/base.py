"""What a format of tool calls is: how a model family writes calls into its answer.

Leaf of this package. Adding a format: one module with a class of this shape, one line in `FORMATS` (registry.py).
"""

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

#: the id of the token that spells this mark, where it is no text to a grammar (control tokens); else None
SpecialId = Callable[[str], int | None]


class Tool(NamedTuple):
    """A function that the request offers."""

    name: str
    schema: dict[str, Any]  #: of the arguments: always an object's
    is_strict: bool = False
    param: str = "tools"  #: the field of the request that has the schema


class RawCall(NamedTuple):
    name: str
    arguments: str  #: JSON text of an object
    call_id: str = ""  #: the model's own


class Found(NamedTuple):
    """The calls of one section of the text, and where the text goes on behind it."""

    calls: tuple[RawCall, ...]
    end: int


class Verdict(Enum):
    WAIT = "wait"  #: more text will tell
    NOT_A_CALL = "not a call"


Reading = Found | Verdict


class Evidence(NamedTuple):
    """What is known of a chat template."""

    source: str
    shows_tools: bool  #: a tool that it is given appears in the prompt
    call: str = ""  #: the rest of a prompt from where it shows an assistant's call; empty: it shows none

    @property
    def writing(self) -> str:
        """Where to look for how calls are written."""
        return self.call or self.source


class ToolFormat(Protocol):
    """Stateless. `read` never changes its mind: what it says of a text (but WAIT), it says of every longer one."""

    name: str
    marks: tuple[str, ...]  #: of all its spellings, those that may be control tokens
    opening: str | None  #: the mark that every call begins with; None: calls may begin without one
    opening_lasts: bool  #: behind that mark only calls come, up to the answer's end
    gap: str  #: characters between two calls that mean nothing
    head: re.Pattern[str]  #: in a constrained answer, what comes before a call's arguments; group `name`

    def recognises(self, evidence: Evidence) -> bool:
        """Is this the format that the template's model writes?"""

    def start(self, text: str, position: int, floor: int) -> int:
        """Where from `position` on a call may begin; the text's length: nowhere. `floor`: the last call's end."""

    def read(self, text: str, start: int, is_whole: bool) -> Reading:
        """What begins at `start`. `is_whole`: no more text comes; then never WAIT."""

    def arguments_reader(self) -> "ArgumentsReader":
        """For the arguments of one call in a constrained answer, from behind `head` on."""

    def rules(self, tools: Sequence[Tool], many: bool, special: SpecialId) -> str:
        """Lark rules: `calls`, an answer of one call or of several, and `opened`, the same behind the opening mark."""


class ArgumentsReader(Protocol):
    def feed(self, text: str) -> tuple[str, str | None]:
        """The next fragment of the arguments' JSON text, and what follows the arguments; None: they are not whole."""


def find_mark(text: str, mark: str, position: int) -> int:
    """Where the mark, or a beginning of it at the text's end, is; the text's length: nowhere."""
    found = text.find(mark, position)
    if found >= 0:
        return found
    for start in range(max(position, len(text) - len(mark) + 1), len(text)):
        if mark.startswith(text[start:]):
            return start
    return len(text)


def skip_blank(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def begins_line(text: str, position: int, floor: int, gap: str) -> bool:
    """Is there nothing but blanks between `position` and its line's start (or the last call)?"""
    start = max(text.rfind("\n", floor, position) + 1, floor)
    return not text[start:position].strip(gap)


QUOTED = {quote: re.compile(rf"{quote}(?:[^{quote}\\]|\\.)*{quote}", re.DOTALL) for quote in "\"'"}


def balanced_end(text: str, start: int, quotes: str = '"') -> int | None:
    """Where the bracket that opens at `start` is closed (behind it), quoted texts left aside; None: not yet."""
    interesting = re.compile(rf"[{quotes}()\[\]{{}}]")
    depth, position = 0, start
    while match := interesting.search(text, position):
        character = match.group()
        position = match.end()
        if character in QUOTED:
            quoted = QUOTED[character].match(text, match.start())
            if quoted is None:
                return None
            position = quoted.end()
        else:
            depth += 1 if character in "([{" else -1
            if depth == 0:
                return position
    return None


def undecided(is_whole: bool) -> Verdict:
    return Verdict.NOT_A_CALL if is_whole else Verdict.WAIT
