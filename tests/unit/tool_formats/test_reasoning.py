"""Sections of reasoning at an answer's beginning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.answer_parts import TextPart
from tasks.tool_formats.parsers import PlainParser
from tasks.tool_formats.reasoning import KNOWN_MARKS, Marks, PromptEnd, ReasoningParser, find_marks, prompt_end
from tests.unit.tool_formats.reading import Read, cut, feed_all

THINK = KNOWN_MARKS[0]


def parser(starts_inside: bool = False, marks: Marks = THINK) -> ReasoningParser:
    return ReasoningParser(marks, PlainParser(), starts_inside)


def read(text: str, starts_inside: bool = False) -> tuple[str, str]:
    found = feed_all(parser(starts_inside), [text])
    return found.reasoning, found.content


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nOslo is north.\n</think>\n\nCold.", "Oslo is north.", "Cold."),
        ("\n <think>a</think>b", "a", "b"),
        ("<think>\n\n</think>\n\nb", "", "b"),
        ("<think>\na\n\nb", "a\n\nb", ""),
        ("<think>\na\n</thi", "a\n</thi", ""),
        ("<think>a < b </ c</think>d", "a < b </ c", "d"),
        ("<think>a</think>", "a", ""),
        ("<think>a</think>\n\n", "a", ""),
        ("<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
        ("Say <think>a</think>", "", "Say <think>a</think>"),
        ("  plain\n", "", "  plain\n"),
        ("<thin", "", "<thin"),
        ("<thing>", "", "<thing>"),
        ("</think>a", "", "</think>a"),
        ("", "", ""),
    ],
)
def test_the_section_and_the_answer(text: str, reasoning: str, content: str) -> None:
    assert read(text) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\nHm.\n</think>\n\nCold.", "Hm.", "Cold."),
        ("Hm.", "Hm.", ""),
        ("</think>Cold.", "", "Cold."),
        ("<think>Hm.</think>Cold.", "<think>Hm.", "Cold."),
    ],
)
def test_an_answer_that_begins_inside(text: str, reasoning: str, content: str) -> None:
    assert read(text, starts_inside=True) == (reasoning, content)


def test_reasoning_leaves_as_it_comes() -> None:
    stream = parser()
    assert stream.feed("<think>") == []
    assert stream.in_reasoning
    assert stream.feed("\nOslo") == [TextPart("Oslo", is_reasoning=True)]
    assert stream.feed(" is\n") == [TextPart(" is", is_reasoning=True)]
    assert stream.feed("\ncold") == [TextPart("\n\ncold", is_reasoning=True)]
    assert stream.feed("</think>\n") == []
    assert not stream.in_reasoning
    assert stream.feed("\nYes") == [TextPart("Yes")]


@pytest.mark.parametrize("marks", KNOWN_MARKS, ids=lambda marks: marks.opening)
def test_every_pair_of_marks(marks: Marks) -> None:
    found = feed_all(parser(marks=marks), [f"{marks.opening}a{marks.closing}b"])
    assert (found.reasoning, found.content) == ("a", "b")
    assert find_marks(f"{{{{ '{marks.opening}' }}}}") == marks
    assert find_marks(f"{{{{ content.split('{marks.closing}')[-1] }}}}") == marks


def test_a_template_without_marks() -> None:
    assert find_marks("{{ messages }} think") is None


@pytest.mark.parametrize(
    ("prompt", "end"),
    [
        ("assistant\n<think>\n", PromptEnd.OPENS),
        ("assistant\n<think>", PromptEnd.OPENS),
        ("assistant\n<think>\n\n</think>\n\n", PromptEnd.CLOSES),
        ("assistant\n", PromptEnd.LEAVES_OPEN),
        ("<think> is a tag\nassistant\n", PromptEnd.LEAVES_OPEN),
    ],
)
def test_the_end_of_the_prompt(prompt: str, end: PromptEnd) -> None:
    assert prompt_end(prompt, THINK) is end


@given(
    words=st.lists(
        st.sampled_from(["<think>", "</think>", "<thi", "</", "nk>", "a", " ", "\n", "<", ">"]), max_size=12
    ),
    places=st.lists(st.integers(0, 100), max_size=12),
    starts_inside=st.booleans(),
)
def test_any_pieces_give_the_same(words: list[str], places: list[int], starts_inside: bool) -> None:
    text = "".join(words)
    whole: Read = feed_all(parser(starts_inside), [text])
    assert feed_all(parser(starts_inside), cut(text, places)) == whole
