"""Parsers of answers with tools: calls as the model likes, and calls that a grammar makes sure of."""

import json
from enum import Enum

from tasks.answer_parts import AnswerPart, CallPart, TextPart
from tasks.tool_formats.base import ArgumentsReader, Found, ToolFormat, Verdict
from tasks.tool_formats.call_ids import CallIds

LONG = 2000  #: characters of an unfinished call from which on it is looked at only when it has grown by an eighth


class Restriction(Enum):
    """Where the plan's grammar holds."""

    NOWHERE = "nowhere"
    EVERYWHERE = "everywhere"
    OPENED = "opened"  #: from the opening mark of a call to the call's end


class PlainParser:
    """An answer without tools: all text. See AnswerParser, also for the others."""

    in_reasoning = False
    has_calls = False
    is_done = False

    def __init__(self, is_free: bool = True) -> None:
        self.is_free = is_free

    def feed(self, text: str) -> list[AnswerPart]:
        return [TextPart(text)] if text else []

    def finish(self) -> list[AnswerPart]:
        return []


class AutoParser:
    """Text with calls in it, where the model wants. A call leaves when it is whole and known to be one.

    What is no call leaves as text, as it is; white space next to a call is dropped.
    """

    in_reasoning = False

    def __init__(
        self,
        tool_format: ToolFormat,
        names: frozenset[str],
        many: bool = True,
        restriction: Restriction = Restriction.NOWHERE,
    ) -> None:
        """`names`: of the request's tools. `many`: False: nothing counts behind the first call."""
        self.has_calls = False
        self._format = tool_format
        self._names = names
        self._many = many
        self._restriction = restriction
        self._ids = CallIds()
        self._n_calls = 0
        self._text = ""
        self._sent = 0  # what is before has left, or was dropped
        self._position = 0  # no call begins before
        self._floor = 0  # the last call's end
        self._next_look = 0  # length of the text
        self._opened_at: int | None = None  # the call whose opening mark was the last that was seen
        self._is_opened = False

    @property
    def is_free(self) -> bool:
        if self._restriction is Restriction.OPENED:
            return not self._is_opened
        return self._restriction is Restriction.NOWHERE

    @property
    def is_done(self) -> bool:
        return self.has_calls and not self._many

    def feed(self, text: str) -> list[AnswerPart]:
        self._text += text
        return [] if len(self._text) < self._next_look else self._read(is_whole=False)

    def finish(self) -> list[AnswerPart]:
        parts = self._read(is_whole=True)
        rest = self._text[self._sent :]
        if rest and (rest.strip(self._format.gap) or not self._follows_call()):
            parts.append(TextPart(rest))
        self._sent = len(self._text)
        return parts

    def _read(self, is_whole: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        while not self.is_done:
            start = self._position = self._format.start(self._text, self._position, self._floor)
            reading = Verdict.WAIT if start == len(self._text) else self._format.read(self._text, start, is_whole)
            if reading is Verdict.WAIT:
                self._wait(start)
                return parts + self._text_up_to(start)
            if isinstance(reading, Found) and all(call.name in self._names for call in reading.calls):
                parts += self._text_up_to(start)
                parts += self._calls(reading)
            else:
                self._position = start + 1
                self._is_opened = False
        self._sent = len(self._text)
        return parts

    def _calls(self, found: Found) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        for call in found.calls if self._many else found.calls[:1]:
            parts.append(CallPart(self._n_calls, self._ids.new(call.call_id), call.name, call.arguments))
            self._n_calls += 1
        self.has_calls = True
        self._sent = self._position = self._floor = found.end
        self._is_opened = self._is_opened and self._format.opening_lasts
        return parts

    def _text_up_to(self, limit: int) -> list[AnswerPart]:
        """White space at the end stays: what follows may be a call."""
        text = self._text[self._sent : limit].rstrip()
        if not text or (self._follows_call() and not text.strip(self._format.gap)):
            return []
        self._sent += len(text)
        return [TextPart(text)]

    def _follows_call(self) -> bool:
        return self.has_calls and self._sent == self._floor

    def _wait(self, start: int) -> None:
        """A call may begin here. The grammar holds from its mark on, unless more came in one piece with that."""
        length = len(self._text) - start
        self._next_look = len(self._text) + (length // 8 if length > LONG and not self._is_opened else 0)
        mark = self._format.opening
        if mark is None or self._opened_at == start or not self._text.startswith(mark, start):
            return
        self._opened_at = start
        self._is_opened = not self._text[start + len(mark) :].strip()


class ConstrainedParser:
    """An answer that is nothing but calls, each of them valid: they leave while they are written.

    What was written of a call before its name was whole is no text for a reader, and is dropped.
    """

    in_reasoning = False
    is_free = False
    is_done = False  #: the grammar says where it ends

    def __init__(self, tool_format: ToolFormat) -> None:
        self.has_calls = False
        self._format = tool_format
        self._ids = CallIds()
        self._n_calls = 0  # whole ones
        self._held = ""
        self._arguments: ArgumentsReader | None = None  # of the call that is being written

    def feed(self, text: str) -> list[AnswerPart]:
        self._held += text
        parts: list[AnswerPart] = []
        while True:
            if self._arguments is None:
                head = self._format.head.search(self._held)
                if head is None:
                    return parts
                self._held = self._held[head.end() :]
                self._arguments = self._format.arguments_reader()
                name = json.loads(f'"{head["name"]}"')
                parts.append(CallPart(self._n_calls, self._ids.new(), name, ""))
            fragment, rest = self._arguments.feed(self._held)
            if fragment:
                parts.append(CallPart(self._n_calls, "", "", fragment))
            self._held = rest or ""
            if rest is None:
                return parts
            self._arguments = None
            self._n_calls += 1
            self.has_calls = True

    def finish(self) -> list[AnswerPart]:
        return []
