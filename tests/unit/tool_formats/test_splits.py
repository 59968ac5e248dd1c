"""However an answer's text is cut into pieces, it means the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.answer_parts import TextPart
from tasks.tool_formats.base import ToolFormat
from tasks.tool_formats.parsers import AutoParser
from tasks.tool_formats.reasoning import KNOWN_MARKS, ReasoningParser
from tasks.tool_formats.registry import FORMATS
from tests.unit.tool_formats import test_generic, test_hermes, test_llama_json, test_llama_pythonic, test_mistral
from tests.unit.tool_formats.reading import TOOLS, Output, cut, feed_all

RECORDED: list[Output] = [
    *test_generic.OUTPUTS,
    *test_hermes.OUTPUTS,
    *test_llama_json.OUTPUTS,
    *test_llama_pythonic.OUTPUTS,
    *test_mistral.OUTPUTS,
]
PLACES = st.lists(st.integers(0, 500), max_size=30)
#: texts that are full of what marks are made of
CONFUSING = st.text(st.sampled_from(list('<>|[]{}()`"\\:;,=/ \n\tTOL_CAnamejsothikpyg1')), max_size=80)
every_format = pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)


def new_parser(tool_format: ToolFormat) -> ReasoningParser:
    return ReasoningParser(KNOWN_MARKS[0], AutoParser(tool_format, TOOLS))


@every_format
@settings(max_examples=150, deadline=None)
@given(outputs=st.lists(st.sampled_from(RECORDED), min_size=1, max_size=3), places=PLACES, thinks=st.booleans())
def test_any_pieces_of_recorded_answers_give_the_same(
    tool_format: ToolFormat, outputs: list[Output], places: list[int], thinks: bool
) -> None:
    text = ("<think>\nHm, <tool_call>?\n</think>\n\n" if thinks else "") + "\n".join(output.text for output in outputs)
    whole = feed_all(new_parser(tool_format), [text])
    pieces = feed_all(new_parser(tool_format), cut(text, places))
    characters = feed_all(new_parser(tool_format), text)
    assert pieces[:3] == characters[:3] == whole[:3]


@every_format
@settings(max_examples=150, deadline=None)
@given(text=CONFUSING, places=PLACES)
def test_any_pieces_of_confusing_text_give_the_same(tool_format: ToolFormat, text: str, places: list[int]) -> None:
    whole = feed_all(AutoParser(tool_format, TOOLS), [text])
    assert feed_all(AutoParser(tool_format, TOOLS), cut(text, places))[:3] == whole[:3]
    if not whole.calls:
        assert whole.content == text


@every_format
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=100), places=PLACES)
def test_text_without_calls_comes_out_unchanged(tool_format: ToolFormat, text: str, places: list[int]) -> None:
    assert feed_all(AutoParser(tool_format, TOOLS), cut(text, places)).content == text


@every_format
def test_prose_leaves_at_once(tool_format: ToolFormat) -> None:
    parser = AutoParser(tool_format, TOOLS)
    parts = [part for word in ("Oslo", " is", " cold", ".") for part in parser.feed(word)]
    assert parts == [TextPart("Oslo"), TextPart(" is"), TextPart(" cold"), TextPart(".")]


@every_format
def test_nothing_counts_behind_the_first_call_where_one_is_allowed(tool_format: ToolFormat) -> None:
    calls = {
        "hermes": '<tool_call>{"name": "now", "arguments": {}}</tool_call>' * 2,
        "mistral": '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
        "mistral-named": "[TOOL_CALLS]now[ARGS]{}" * 2,
        "llama-json": '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
        "llama-pythonic": "[now(), now()]",
        "generic": '{"tool_calls": [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]}',
    }
    text = f"Sure.\n{calls[tool_format.name]} And more."
    parser = AutoParser(tool_format, TOOLS, many=False)
    assert not parser.is_done
    found = feed_all(parser, text)
    assert parser.is_done
    assert (found.content, found.calls) == ("Sure.", [("now", "{}")])
    assert len(feed_all(AutoParser(tool_format, TOOLS), text).calls) == 2


@pytest.mark.timeout(30)
@every_format
def test_a_long_call_is_read_in_time(tool_format: ToolFormat) -> None:
    text = '{"name": "now", "arguments": {"text": "' + "word } ] " * 10_000
    parser = AutoParser(tool_format, TOOLS)
    for start in range(0, len(text), 20):
        parser.feed(text[start : start + 20])
    assert not parser.has_calls
