"""Lists of calls in Python's notation."""

import pytest

from tasks.tool_formats.llama_pythonic import LlamaPythonic, read_keywords
from tests.unit.tool_formats.reading import NOW, OSLO, Output, as_text, read

CALL = '[get_weather(city="Oslo")]'

OUTPUTS = [
    Output("one", CALL, [OSLO]),
    Output("several", '[get_weather(city="Oslo"), now()]', [OSLO, NOW]),
    Output("on several lines", '[\n  get_weather(\n    city="Oslo",\n  ),\n  now(),\n]', [OSLO, NOW]),
    Output("behind the tag", "<|python_tag|>" + CALL, [OSLO]),
    Output("simple quotes", "[get_weather(city='Oslo')]", [OSLO]),
    Output("text before", "Sure.\n" + CALL, [OSLO], "Sure."),
    Output("text after", CALL + " Done.", [OSLO], " Done."),
    Output("two lists", f"{CALL}\n[now()]", [OSLO, NOW]),
    Output(
        "a name with a dash and one with a dot",
        "[send-mail(), notes.add()]",
        [("send-mail", "{}"), ("notes.add", "{}")],
    ),
    Output("brackets and quotes within a text", '[now(a=")]\\"\'")]', [("now", '{"a": ")]\\"\'"}')]),
    as_text("a list", "[1, 2]"),
    as_text("a link", "[now](http://example.com)"),
    as_text("a list of names", "[now, get_weather]"),
    as_text("in the middle of a line", f"Write {CALL}."),
    as_text("no keyword", '[get_weather("Oslo")]'),
    as_text("an expression", "[now(a=1+1)]"),
    as_text("a call within a call", "[now(a=now())]"),
    as_text("a variable", "[now(a=city)]"),
    as_text("bytes", "[now(a=b'x')]"),
    as_text("an imaginary number", "[now(a=1j)]"),
    as_text("a number too large for a float and no JSON", "[now(a=1_0e999)]"),
    as_text("a key that is no text", "[now(a={1: 2})]"),
    as_text("words between calls", "[now() and now()]"),
    as_text("a call and an element", "[now(), 1]"),
    as_text("not whole", CALL[:-1]),
    as_text("a name that is not offered", "[rm_rf()]"),
    as_text("one bracket", "["),
    as_text("half the tag", "<|pyth"),
    as_text("code behind the tag", "<|python_tag|>import os"),
]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.label)
def test_what_models_write(output: Output) -> None:
    found = read(LlamaPythonic(), output.text)
    assert (found.calls, found.content) == (output.calls, output.content)


@pytest.mark.parametrize(
    ("python", "json"),
    [
        ("", "{}"),
        ("a=True, b=False, c=None", '{"a": true, "b": false, "c": null}'),
        ("a=true, b=false, c=null", '{"a": true, "b": false, "c": null}'),
        (
            "a=-1, b=2.50, c=12345678901234567890, d=1e400",
            '{"a": -1, "b": 2.50, "c": 12345678901234567890, "d": 1e400}',
        ),
        ("a=0x10, b=1_000, c=.5", '{"a": 16, "b": 1000, "c": 0.5}'),
        ("a=[1, (2, 3)], b={'k': ['v']}", '{"a": [1, [2, 3]], "b": {"k": ["v"]}}'),
        ("a='Grüße \\n \"x\"'", '{"a": "Grüße \\n \\"x\\""}'),
        ("a='\\d'", '{"a": "\\\\d"}'),
        ("a='x' 'y'", '{"a": "xy"}'),
        ("a='\\ud800'", '{"a": "\\ud800"}'),
        ("a=1, a=2", '{"a": 2}'),
        ('**{"b": 1}, c=2', '{"b": 1, "c": 2}'),
    ],
)
def test_literals_become_json(python: str, json: str) -> None:
    assert read_keywords(python) == json


@pytest.mark.parametrize(
    "python", ["-True", "a=-'x'", "*[1]", "**x", "a=1)(b=2", "a=f'{x}'", "a=" + "(" * 5000, "a=1#"]
)
def test_anything_else_is_refused(python: str) -> None:
    assert read_keywords(python) in (None, '{"a": 1}')


def test_a_very_long_number_is_refused_and_no_error() -> None:
    assert read_keywords("a=" + "9" * 5000) is None
