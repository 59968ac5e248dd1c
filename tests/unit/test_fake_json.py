"""The fake engine where JSON is demanded: calls of tools, schemas."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tasks.contracts import FinishReason, Grammar, GrammarKind, ToolChoice
from tasks.engines.fake import FakeChatEngine
from tasks.engines.fake_json import smallest_value
from tasks.settings import load_settings
from tests.engine_contract import chat_request, run

Load = Callable[..., FakeChatEngine]


@pytest.fixture
def load() -> Iterator[Load]:
    """A fake chat engine with these settings; closed at the end."""
    engines: list[FakeChatEngine] = []

    def load_and_remember(**settings: Any) -> FakeChatEngine:
        engines.append(FakeChatEngine(load_settings(backend="fake", **settings)))
        return engines[-1]

    yield load_and_remember
    for engine in engines:
        engine.close()


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 3},
        "unit": {"enum": ["C", "F"]},
        "spots": {"type": "array", "items": {"$ref": "#/$defs/spot"}, "minItems": 2},
        "note": {"type": ["null", "string"]},
        "unused": {"type": "string"},
    },
    "required": ["city", "days", "unit", "spots", "note"],
    "$defs": {"spot": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
}
SMALLEST = {"city": "x", "days": 3, "unit": "C", "spots": [0, 0], "note": None}


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize("token_s", [0.0, 0.0005])
def test_a_required_tool_is_called_with_the_smallest_arguments(load: Load, token_s: float) -> None:
    tools = [tool("other", {}), tool("weather", SCHEMA)]
    request = chat_request("x", tools=tools, tool_choice=ToolChoice.REQUIRED, tool_name="weather", n=2)
    sink = run(load(fake_token_s=token_s), request)
    assert (sink.reasons, sink.reason) == ({0: FinishReason.TOOL_CALLS}, FinishReason.TOOL_CALLS)
    for choice in (0, 1):
        calls = [call for call in sink.calls if call[0] == choice]
        assert json.loads("".join(call[4] for call in calls)) == SMALLEST
        assert [call[3] for call in calls if call[2]] == ["weather"]
    assert len({call[2] for call in sink.calls if call[2]}) == 2
    assert not sink.deltas


def test_tools_that_need_not_be_called_are_not(load: Load) -> None:
    sink = run(load(), chat_request("x", tools=[tool("weather", SCHEMA)]))
    assert (sink.calls, sink.reason) == ([], FinishReason.STOP)


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA)), SMALLEST),
        (Grammar(kind=GrammarKind.JSON_OBJECT), {}),
    ],
)
def test_a_schema_gets_its_smallest_value(load: Load, grammar: Grammar, expected: dict[str, Any]) -> None:
    assert json.loads(run(load(), chat_request("x", grammar=grammar)).text) == expected


def test_a_schema_that_refers_to_itself_has_a_value() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert json.dumps(smallest_value(schema)).startswith('{"next": {"next"')
