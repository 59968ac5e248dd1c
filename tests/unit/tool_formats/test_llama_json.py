"""Objects with name and parameters, as Llama 3.x writes them."""

import pytest

from tasks.tool_formats.llama_json import LlamaJson
from tests.unit.tool_formats.reading import NOW, OSLO, Output, as_text, read

CALL = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
NOW_CALL = '{"name": "now", "parameters": {}}'

OUTPUTS = [
    Output("one", CALL, [OSLO]),
    Output("behind the tag", "<|python_tag|>" + CALL, [OSLO]),
    Output("parted by semicolons", f"{CALL}; {NOW_CALL}", [OSLO, NOW]),
    Output("parted by semicolons behind the tag", f"<|python_tag|>{CALL};{NOW_CALL}", [OSLO, NOW]),
    Output("parted by lines", f"{CALL}\n{NOW_CALL}\n", [OSLO, NOW]),
    Output("with a type", CALL.replace("{", '{"type": "function", ', 1), [OSLO]),
    Output("on several lines", CALL.replace(", ", ",\n  ").replace("{", "{\n  ", 1), [OSLO]),
    Output("text before", "I look.\n" + CALL, [OSLO], "I look."),
    Output("text before the tag", "I look. <|python_tag|>" + CALL, [OSLO], "I look."),
    Output("text after", CALL + "\nThat is all.", [OSLO], "\nThat is all."),
    Output("a semicolon after", CALL + ";", [OSLO]),
    Output("fenced", f"```json\n{CALL}\n```", [OSLO]),
    Output("indented", "  " + CALL, [OSLO]),
    as_text("an answer that is JSON", '{"city": "Oslo", "temperature": 3}'),
    as_text("an answer with a name", '{"name": "Oslo", "parameters": {}}'),
    as_text("a call with something more", CALL.replace("{", '{"name": "x", "unit": "C", ', 1)),
    as_text("no parameters", '{"name": "now"}'),
    as_text("in the middle of a line", f"Write {CALL} to ask."),
    as_text("code behind the tag", "<|python_tag|>print(1)"),
    as_text("the tag alone", "<|python_tag|>"),
    as_text("half the tag", "a <|python_"),
    as_text("not whole", CALL[:-1]),
    as_text("a name that is not offered", CALL.replace("get_weather", "rm_rf")),
    as_text("one brace", "{"),
    as_text("a set", "Let A be\n{1, 2} and B\n{ }."),
    as_text("a semicolon", "a; b;"),
    as_text("code in a fence", '```python\nd = {"name": 1}\n```'),
    as_text("JSON in a fence", '```json\n{"name": "Oslo"}\n```'),
    as_text("an open fence", "```json\n"),
    as_text("half a fence", "``"),
]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.label)
def test_what_models_write(output: Output) -> None:
    found = read(LlamaJson(), output.text)
    assert (found.calls, found.content) == (output.calls, output.content)
