"""Sections in which a model thinks before it answers: their marks, and the parser that tells them from the answer."""

from enum import Enum
from typing import NamedTuple

from tasks.answer_parts import AnswerParser, AnswerPart, TextPart
from tasks.tool_formats.base import find_mark


class Marks(NamedTuple):
    opening: str
    closing: str


KNOWN_MARKS = (
    Marks("<think>", "</think>"),
    Marks("<thinking>", "</thinking>"),
    Marks("<reasoning>", "</reasoning>"),
    Marks("[THINK]", "[/THINK]"),
)


class Section(Enum):
    """Where in the answer the text is."""

    START = "start"  #: nothing but white space yet
    REASONING = "reasoning"
    BETWEEN = "between"  #: white space behind the section
    ANSWER = "answer"


class PromptEnd(Enum):
    """What the prompt decides."""

    OPENS = "opens"  #: the answer begins within the section
    CLOSES = "closes"  #: there is none, or an empty one
    LEAVES_OPEN = "leaves open"


def find_marks(template_source: str) -> Marks | None:
    """A template that knows reasoning names its marks: to write them, or to cut it from earlier turns."""
    return next((marks for marks in KNOWN_MARKS if any(mark in template_source for mark in marks)), None)


def prompt_end(prompt: str, marks: Marks) -> PromptEnd:
    stripped = prompt.rstrip()
    if stripped.endswith(marks.opening):
        return PromptEnd.OPENS
    return PromptEnd.CLOSES if stripped.endswith(marks.closing) else PromptEnd.LEAVES_OPEN


class ReasoningParser:
    """Takes the section from the answer's beginning and gives the rest to another parser. See AnswerParser.

    White space around the section and within its ends is dropped. A mark further on is text.
    """

    def __init__(self, marks: Marks, inner: AnswerParser, starts_inside: bool = False) -> None:
        self._marks = marks
        self._inner = inner
        self._section = Section.REASONING if starts_inside else Section.START
        self._held = ""
        self._has_reasoning = False  # some of it has left

    @property
    def in_reasoning(self) -> bool:
        return self._section is Section.REASONING

    @property
    def is_free(self) -> bool:
        return self.in_reasoning or self._inner.is_free

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

    @property
    def has_calls(self) -> bool:
        return self._inner.has_calls

    def feed(self, text: str) -> list[AnswerPart]:
        if self._section is Section.ANSWER:
            return self._inner.feed(text)
        self._held += text
        parts: list[AnswerPart] = []
        if self._section is Section.START:
            self._begin()
        if self._section is Section.REASONING:
            parts += self._reason()
        if self._section is Section.BETWEEN:
            self._held = self._held.lstrip()
            if self._held:
                self._section = Section.ANSWER
        if self._section is Section.ANSWER:
            held, self._held = self._held, ""
            parts += self._inner.feed(held)
        return parts

    def finish(self) -> list[AnswerPart]:
        held, self._held = self._held, ""
        parts: list[AnswerPart] = []
        if self._section is Section.REASONING:
            parts += self._thought(held.rstrip())
        elif self._section is not Section.BETWEEN:
            parts += self._inner.feed(held)
        return parts + self._inner.finish()

    def _begin(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._marks.opening):
            self._held = text.removeprefix(self._marks.opening)
            self._section = Section.REASONING
        elif not self._marks.opening.startswith(text):
            self._section = Section.ANSWER

    def _reason(self) -> list[AnswerPart]:
        end = find_mark(self._held, self._marks.closing, 0)
        text = self._held[:end].rstrip()
        if self._held.startswith(self._marks.closing, end):
            self._held = self._held[end + len(self._marks.closing) :]
            self._section = Section.BETWEEN
        else:
            self._held = self._held[len(text) :]
        return self._thought(text)

    def _thought(self, text: str) -> list[AnswerPart]:
        if not self._has_reasoning:
            text = text.lstrip()
        if not text:
            return []
        self._has_reasoning = True
        return [TextPart(text, is_reasoning=True)]
