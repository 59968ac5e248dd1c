"""What an answer's text consists of: words for the reader, reasoning, calls of tools. Leaf: shared by engines."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class TextPart(NamedTuple):
    text: str
    is_reasoning: bool = False


class CallPart(NamedTuple):
    """A call, or more of it. The first part of a call has its id and name, later ones have them empty."""

    call: int  #: its number within the choice, from 0
    call_id: str
    name: str
    arguments: str  #: the next fragment of the arguments' JSON text


AnswerPart = TextPart | CallPart


class AnswerParser(Protocol):
    """Takes one choice's text in pieces, as it is generated, and says what it means. Stop texts are gone from it."""

    @property
    def in_reasoning(self) -> bool:
        """The text that comes next is reasoning."""

    @property
    def is_free(self) -> bool:
        """The plan's grammar does not restrict the next token: reasoning, or text before a call."""

    @property
    def has_calls(self) -> bool:
        """At least one whole call was found: the finish reason is `tool_calls`."""

    @property
    def is_done(self) -> bool:
        """Nothing that follows counts: the answer may end here."""

    def feed(self, text: str) -> list[AnswerPart]:
        """What can be told by now. Half a mark is held back."""

    def finish(self) -> list[AnswerPart]:
        """No more text comes: what was held back leaves; a call that is not whole leaves as text."""


class AnswerPlan(NamedTuple):
    """How the choices of one request are to be read and restricted."""

    new_parser: Callable[[], AnswerParser]
    preserved: frozenset[str] = frozenset()  #: control tokens whose spelling the parser must see in the text
    grammar: str | None = None  #: llguidance's, of what is generated from a moment on when the parser is not free
    opening: str | None = None  #: a mark that the first token may spell in spite of the grammar (`<think>`)
    must_hold: bool = False  #: the grammar is of the answer itself: reasoning may not be the end of it
