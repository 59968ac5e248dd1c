"""The form that models without tools are told to write."""

import pytest

from tasks.answer_parts import TextPart
from tasks.tool_formats.generic import FORM, Generic, instructions, with_instructions
from tasks.tool_formats.parsers import AutoParser
from tests.unit.tool_formats.reading import NOW, OSLO, Output, as_text, read

CALL = '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}'
BOTH = CALL.replace("}}]", '}}, {"name": "now", "arguments": {}}]')
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Grüße", "parameters": {"type": "object"}},
}

OUTPUTS = [
    Output("one", CALL, [OSLO]),
    Output("several", BOTH, [OSLO, NOW]),
    Output("fenced", f"```json\n{CALL}\n```", [OSLO]),
    Output("fenced without a word", f"```\n{CALL}\n```\n", [OSLO]),
    Output("an open fence", f"```json\n{CALL}\n", [OSLO]),
    Output("half a closing fence", f"```json\n{CALL}\n``", [OSLO]),
    Output("fenced, with text around", f"I look.\n```json\n{CALL}\n```\nDone.", [OSLO], "I look.\nDone."),
    Output("a call alone", '{"name": "get_weather", "arguments": {"city": "Oslo"}}', [OSLO]),
    Output(
        "two calls alone in a fence",
        '```json\n{"name": "now", "arguments": {}}\n{"name": "now", "arguments": {}}\n```',
        [NOW, NOW],
    ),
    Output(
        "as OpenAI nests it",
        r'{"tool_calls": [{"type": "function",'
        r' "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}]}',
        [OSLO],
    ),
    Output("text before", "Yes.\n\n" + CALL, [OSLO], "Yes."),
    Output("text after", CALL + "\n\nWait for it.", [OSLO], "\n\nWait for it."),
    Output("on several lines", CALL.replace("{", "{\n  "), [("get_weather", '{\n  "city": "Oslo"}')]),
    as_text("no calls", '{"tool_calls": []}'),
    as_text("calls that are no list", '{"tool_calls": {"name": "now"}}'),
    as_text("something beside the calls", CALL.replace("{", '{"tool_calls_": 1, ', 1)),
    as_text("one name that is not offered", BOTH.replace('"now"', '"rm_rf"')),
    as_text("not whole", CALL[:-2]),
    as_text("an answer that is JSON", '{"answer": [1, 2]}'),
    as_text("an answer that is JSON, fenced", '```json\n{"answer": [1, 2]}\n```'),
    as_text("in the middle of a line", f"It is `{CALL}`."),
    as_text("a call and words in a fence", f"```json\n{CALL}\nand so on\n```".replace("tool_calls", "tool_call")),
    as_text("the example itself", FORM),
]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.label)
def test_what_models_write(output: Output) -> None:
    found = read(Generic(), output.text)
    assert (found.calls, found.content) == (output.calls, output.content)


def test_an_object_that_is_no_call_does_not_wait_for_its_end() -> None:
    parser = AutoParser(Generic(), frozenset({"now"}))
    assert parser.feed('{"ans') == [TextPart('{"ans')]


def test_instructions_have_the_functions_and_the_form() -> None:
    text = instructions([TOOL], is_required=False, name=None, many=True)
    assert '"name": "get_weather", "description": "Grüße", "parameters": {"type": "object"}' in text
    assert FORM in text
    assert "one or several" in text


@pytest.mark.parametrize(
    ("is_required", "name", "many", "words"),
    [
        (False, None, False, "To call one of them"),
        (True, None, True, "Call at least one of them"),
        (True, None, False, "Call one of them"),
        (True, "get_weather", False, "Call the function get_weather"),
    ],
)
def test_instructions_say_what_is_asked_for(is_required: bool, name: str | None, many: bool, words: str) -> None:
    assert words in instructions([TOOL], is_required, name, many)


def test_instructions_end_the_system_message_that_is_there() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}]
    assert with_instructions(messages, "T")[0] == {"role": "system", "content": "Be brief.\n\nT"}
    assert messages[0]["content"] == "Be brief."


def test_instructions_are_a_system_message_where_there_is_none() -> None:
    user = {"role": "user", "content": "x"}
    assert with_instructions([user], "T") == [{"role": "system", "content": "T"}, user]
