"""`tools`, `tool_choice` and `parallel_tool_calls`."""

from typing import Any

import pytest

from api.protocol.fields import Fields, InvalidRequest
from api.protocol.tools import ToolUse, read_tools
from tasks.contracts import ToolChoice
from tests.unit.cases import anything


def tool(name: str, parameters: Any = None, **function: Any) -> dict[str, Any]:
    given = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name} | given | function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER, TIME = tool("weather", CITY), tool("time")
BOTH = [WEATHER, TIME]
#: "$ref" points nowhere, so no grammar can be made of it
BAD = {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}


def read(**fields: Any) -> ToolUse:
    return read_tools(Fields(fields))


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, ToolUse()),
        ({"tools": []}, ToolUse()),
        ({"tools": None, "tool_choice": "auto"}, ToolUse()),
        ({"tool_choice": "none"}, ToolUse()),
        ({"tools": BOTH}, ToolUse(BOTH)),
        ({"tools": BOTH, "tool_choice": "auto"}, ToolUse(BOTH)),
        ({"tools": BOTH, "tool_choice": "none"}, ToolUse()),
        ({"tools": BOTH, "tool_choice": "required"}, ToolUse(BOTH, ToolChoice.REQUIRED)),
        ({"tools": BOTH, "tool_choice": named("time")}, ToolUse(BOTH, ToolChoice.REQUIRED, "time")),
        ({"tools": BOTH, "tool_choice": allowed("auto", "time")}, ToolUse([TIME])),
        ({"tools": BOTH, "tool_choice": allowed("required", "time")}, ToolUse([TIME], ToolChoice.REQUIRED)),
        ({"tools": BOTH, "parallel_tool_calls": False}, ToolUse(BOTH, parallel=False)),
        ({"tools": BOTH, "parallel_tool_calls": None}, ToolUse(BOTH)),
        ({"parallel_tool_calls": False}, ToolUse()),
    ],
)
def test_which_tools_may_be_called(fields: dict[str, Any], use: ToolUse) -> None:
    assert read(**fields) == use


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        *[(bad, "tool_choice") for bad in anything("sometimes", 5, True, [], ["auto"])],
        ({}, "tool_choice.type"),
        ({"type": 5}, "tool_choice.type"),
        ({"type": "custom", "custom": {"name": "f"}}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "function": "weather"}, "tool_choice.function"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
        (named("Weather"), "tool_choice.function.name"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {}}, "tool_choice.allowed_tools.mode"),
        (allowed("none", "time"), "tool_choice.allowed_tools.mode"),
        (allowed("auto"), "tool_choice.allowed_tools.tools"),
        (allowed("auto", "time", "nope"), "tool_choice.allowed_tools.tools[1].function.name"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["time"]}},
            "tool_choice.allowed_tools.tools[0]",
        ),
    ],
)
def test_wrong_choice_is_named(choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tools=BOTH, tool_choice=choice)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", ["required", named("weather"), allowed("auto", "weather")])
def test_call_that_must_come_needs_tools(tools: Any, choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tools=tools, tool_choice=choice)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("value", anything("no", 0, [], {}))
def test_wrong_parallel_tool_calls_is_named(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tools=BOTH, parallel_tool_calls=value)
    assert caught.value.param == "parallel_tool_calls"


@pytest.mark.parametrize("tools", anything("x", {}, True))
def test_tools_that_are_no_list(tools: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tools=tools)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ("x", "tools[1]"),
        ({}, "tools[1].type"),
        ({"type": "custom"}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function"),
        ({"type": "function", "function": "f"}, "tools[1].function"),
        ({"type": "function", "function": {}}, "tools[1].function.name"),
        (tool(""), "tools[1].function.name"),
        ({"type": "function", "function": {"name": 5}}, "tools[1].function.name"),
        (tool("f", []), "tools[1].function.parameters"),
        (tool("f", description=5), "tools[1].function.description"),
        (tool("f", strict="yes"), "tools[1].function.strict"),
        (tool("f", {"maximum": 10**25}), "tools[1]"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_bad_tool_is_named(bad: Any, param: str, choice: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tools=[WEATHER, bad], tool_choice=choice)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("bad", "choice"),
    [
        (tool("f", BAD), "required"),
        (tool("f", BAD), named("f")),
        (tool("f", BAD), allowed("required", "f")),
        (tool("f", BAD, strict=True), "auto"),
        (tool("f", BAD, strict=True), named("weather")),
        (tool("f", BAD, strict=True), None),
    ],
)
def test_parameters_that_cannot_be_enforced_are_named_where_they_would_be(bad: Any, choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tools=[WEATHER, bad], tool_choice=choice)
    assert caught.value.param == "tools[1].function.parameters"


@pytest.mark.parametrize(
    ("bad", "choice"),
    [
        (tool("f", BAD), "auto"),
        (tool("f", BAD), named("weather")),
        (tool("f", BAD), allowed("required", "weather")),
        (tool("f", BAD, strict=True), "none"),
        (tool("f", BAD, strict=True), allowed("auto", "weather")),
    ],
)
def test_parameters_that_nothing_enforces_may_be_anything(bad: Any, choice: Any) -> None:
    read(tools=[WEATHER, bad], tool_choice=choice)
