"""`[TOOL_CALLS]`, with an array or with a name behind it."""

import pytest

from tasks.tool_formats.mistral import Mistral, MistralNamed
from tests.unit.tool_formats.reading import NOW, OSLO, Output, as_text, read

CALL = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]'
NAMED = '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}'

OUTPUTS = [
    Output("one", CALL, [OSLO]),
    Output("no blank behind the mark", CALL.replace("] [", "]["), [OSLO]),
    Output("several", CALL.replace("}}]", '}}, {"name": "now", "arguments": {}}]'), [OSLO, NOW]),
    Output("text before", "I look it up. " + CALL, [OSLO], "I look it up."),
    Output("text after", CALL + " There.", [OSLO], " There."),
    Output("blanks after", CALL + " \n", [OSLO]),
    Output("one call without an array", '[TOOL_CALLS]{"name": "now", "arguments": {}}', [NOW]),
    Output("the mark's end within a text", CALL.replace("Oslo", "]}]"), [("get_weather", '{"city": "]}]"}')]),
    Output("a name behind the mark", NAMED, [OSLO]),
    Output("a name and an id behind the mark", NAMED.replace("[ARGS]", "[CALL_ID]abcDEF123[ARGS]"), [OSLO]),
    Output("several names", NAMED + "[TOOL_CALLS]now[ARGS]{}", [OSLO, NOW]),
    Output("a name with a dash", "[TOOL_CALLS]send-mail[ARGS]{}", [("send-mail", "{}")]),
    as_text("no call", "The list [TOOL_CAL is short [1] and [TOOL]."),
    as_text("not whole", CALL[:-4]),
    as_text("a name that is not offered", CALL.replace("get_weather", "rm_rf")),
    as_text("one of two names that is not offered", CALL.replace("}}]", '}}, {"name": "rm_rf", "arguments": {}}]')),
    as_text("an empty array", "[TOOL_CALLS] []"),
    as_text("words", "[TOOL_CALLS] get the weather"),
    as_text("a name without arguments", "[TOOL_CALLS]now"),
    as_text("a name and half a mark", "[TOOL_CALLS]now[AR"),
    as_text("a name and half its arguments", NAMED[:-3]),
    as_text("a name and a list", '[TOOL_CALLS]now[ARGS]["Oslo"]'),
    as_text("an array that is no JSON", "[TOOL_CALLS] [{'name': 'now', 'arguments': {}}]"),
    as_text("the mark alone", "[TOOL_CALLS]"),
]


@pytest.mark.parametrize("tool_format", [Mistral(), MistralNamed()], ids=lambda tool_format: tool_format.name)
@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.label)
def test_what_models_write(output: Output, tool_format: Mistral) -> None:
    found = read(tool_format, output.text)
    assert (found.calls, found.content) == (output.calls, output.content)


def test_the_models_own_ids_are_kept_once() -> None:
    call = '{"name": "now", "arguments": {}, "id": "abcDEF123"}'
    bad = call.replace("abcDEF123", "no id!")
    first, second, third = read(Mistral(), f"[TOOL_CALLS] [{call}, {call}, {bad}]").ids
    assert first == "abcDEF123"
    assert second.startswith("call_")
    assert third.startswith("call_")
    assert len({first, second, third}) == 3


def test_an_id_behind_a_name_is_kept() -> None:
    assert read(MistralNamed(), "[TOOL_CALLS]now[CALL_ID]abcDEF123[ARGS]{}").ids == ["abcDEF123"]
