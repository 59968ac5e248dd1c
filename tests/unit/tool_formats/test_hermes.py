"""`<tool_call>` blocks, as Qwen and Hermes write them."""

import pytest

from tasks.tool_formats.hermes import Hermes
from tests.unit.tool_formats.reading import NOW, OSLO, Output, as_text, read

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'

OUTPUTS = [
    Output("one", CALL, [OSLO]),
    Output("several", CALL + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', [OSLO, NOW]),
    Output("text before", "Let me look.\n\n" + CALL, [OSLO], "Let me look."),
    Output("text after", CALL + "\nDone.", [OSLO], "\nDone."),
    Output("blanks after", CALL + "\n\n", [OSLO]),
    Output("no closing mark at the end", CALL.removesuffix("\n</tool_call>"), [OSLO]),
    Output("half a closing mark at the end", CALL.removesuffix("call>"), [OSLO]),
    Output("no closing mark between two", CALL.removesuffix("</tool_call>") + CALL, [OSLO, OSLO]),
    Output("on one line", CALL.replace("\n", ""), [OSLO]),
    Output(
        "arguments as a text of JSON",
        r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}</tool_call>',
        [OSLO],
    ),
    Output("arguments under the other name", CALL.replace("arguments", "parameters"), [OSLO]),
    Output("no arguments", '<tool_call>{"name": "now"}</tool_call>', [NOW]),
    Output("arguments null", '<tool_call>{"name": "now", "arguments": null}</tool_call>', [NOW]),
    Output("arguments first", '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>', [OSLO]),
    Output(
        "the marks within a text",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call> } \\" {"}}</tool_call>',
        [("get_weather", '{"city": "</tool_call> } \\" {"}')],
    ),
    Output(
        "numbers keep their digits",
        '<tool_call>{"name": "now", "arguments": {"a": 12345678901234567890.10, "b": 1e400, "c": -0}}</tool_call>',
        [("now", '{"a": 12345678901234567890.10, "b": 1e400, "c": -0}')],
    ),
    as_text("no call", "The tag is <tool, or <tool_cal, and < alone."),
    as_text("a name that is not offered", CALL.replace("get_weather", "rm_rf")),
    as_text("no JSON", "<tool_call>\nget_weather(Oslo)\n</tool_call>"),
    as_text("a brace too many", CALL.replace("}}", "}}}")),
    as_text("not whole", CALL[:40]),
    as_text("the mark alone", "Hm. <tool_call>"),
    as_text("half the mark", "Hm. <tool_"),
    as_text("arguments that are a list", CALL.replace('{"city": "Oslo"}', '["Oslo"]')),
    as_text("arguments that are no JSON", CALL.replace('{"city": "Oslo"}', '"Oslo"')),
    as_text("not a number", CALL.replace('"Oslo"', "NaN")),
    as_text("a closing mark alone", "</tool_call>"),
    as_text("only blanks", " \n "),
    Output("a bad one, then a good one", "<tool_call>{x}</tool_call>\n" + CALL, [OSLO], "<tool_call>{x}</tool_call>"),
    Output("a good one, then a bad one", CALL + "\n<tool_call>{x}", [OSLO], "\n<tool_call>{x}"),
]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.label)
def test_what_models_write(output: Output) -> None:
    found = read(Hermes(), output.text)
    assert (found.calls, found.content) == (output.calls, output.content)


def test_deep_nesting_is_text_and_no_error() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}</tool_call>"
    assert read(Hermes(), text).content == text
