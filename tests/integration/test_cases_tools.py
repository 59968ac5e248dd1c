"""Reported bugs of tools, with a real model: round trips, forced calls, streams of calls."""

import json
from typing import Any

import pytest

from tests.service_calls import CHATS, Service, chat_body, error_of
from tests.unit.cases import anything


def tool(name: str, properties: dict[str, Any], **function: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, **function}}


WEATHER = tool("get_weather", {"city": {"type": "string", "maxLength": 30}}, description="Weather of a city")
CLOCK = tool("get_time", {"zone": {"enum": ["UTC", "CET"]}})
NOTHING = {"type": "function", "function": {"name": "ping", "description": "Takes no arguments"}}
ASKED = {"role": "user", "content": "Weather in Oslo?"}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def call(arguments: str = '{"city": "Oslo"}', call_id: str | None = "call_1") -> dict[str, Any]:
    given = {} if call_id is None else {"id": call_id}
    return {**given, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def result(content: Any = '{"temp_c": -3}', call_id: str | None = "call_1") -> dict[str, Any]:
    given = {} if call_id is None else {"tool_call_id": call_id}
    return {"role": "tool", "content": content, **given}


def turn(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls), **fields}


# -- round trips -----------------------------------------------------------------------------------

ROUND_TRIPS: dict[str, list[dict[str, Any]]] = {
    "content null": [turn(call(), content=None), result()],
    "no content": [turn(call()), result()],
    "content empty": [turn(call(), content=""), result()],
    "content beside the call": [turn(call(), content="Let me look."), result()],
    "content in parts": [
        turn(call(), content=[{"type": "text", "text": "Let me look."}]),
        result([{"type": "text", "text": '{"temp_c": -3}'}]),
    ],
    "several calls": [
        turn(call(), call('{"city": "Rome"}', "call_2"), content=None),
        result(),
        result('{"temp_c": 21}', "call_2"),
    ],
    "no ids": [turn(call(call_id=None), content=None), result(call_id=None)],
    "older form": [
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
        {"role": "function", "name": "get_weather", "content": '{"temp_c": -3}'},
    ],
}


@pytest.mark.parametrize("with_tools", [True, False])
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_result_of_a_call_reaches_the_model(real: Service, name: str, with_tools: bool) -> None:
    """TOOL-01"""
    tools = {"tools": [WEATHER]} if with_tools else {}
    history = [ASKED, *ROUND_TRIPS[name]]
    answer = real.chat(history, max_tokens=8, tool_choice="none" if with_tools else None, **tools)
    changed = [*history[:-1], history[-1] | {"content": '{"temp_c": -3, "wind": "a storm from the north"}'}]
    longer = real.chat(changed, max_tokens=8, tool_choice="none" if with_tools else None, **tools)
    assert answer.text
    assert longer.prompt_tokens > answer.prompt_tokens


@pytest.mark.parametrize("arguments", ["", "{}", "null", '"{}"', "not json", "[1,2]"])
def test_whatever_arguments_a_call_had_it_goes_back_into_the_prompt(real: Service, arguments: str) -> None:
    """TOOL-03"""
    history = [ASKED, turn(call(arguments), content=None), result()]
    response = real.post(CHATS, chat_body(history, max_tokens=4, tools=[WEATHER, NOTHING]))
    if arguments in ("", "{}"):
        assert response.status_code == 200, response.text
    elif response.status_code != 200:
        assert error_of(response, 400)["param"].startswith("messages")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hi"}, result("x", "nope")],
        [result("x", "nope"), {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi"}, result("x", None)],
        [ASKED, turn(call(), content=None)],
        [ASKED, turn(call(), content=None), {"role": "user", "content": "Never mind."}],
        [ASKED, turn(call(), content=None), result(), result()],
    ],
)
def test_calls_and_results_that_do_not_match(real: Service, messages: Any) -> None:
    """TOOL-07"""
    for tools in ([], [WEATHER]):
        response = real.post(CHATS, chat_body(messages, max_tokens=4, tools=tools))
        if response.status_code != 200:
            assert error_of(response, 400)["param"].startswith("messages")


# -- calls -----------------------------------------------------------------------------------------


def streamed_calls(choices: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """The calls of one choice, put together as clients do; checks the form of each delta."""
    calls: list[dict[str, Any]] = []
    for choice in choices:
        if choice["index"] != index:
            continue
        for said in choice["delta"].get("tool_calls", []):
            if said["index"] == len(calls):
                assert (said["type"], said["function"]["arguments"]) == ("function", "")
                calls.append({"id": said["id"], "type": "function", "function": dict(said["function"])})
            else:
                assert said["index"] == len(calls) - 1
                assert set(said) == {"index", "function"}
                assert set(said["function"]) == {"arguments"}
                calls[-1]["function"]["arguments"] += said["function"]["arguments"]
    return calls


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_call_that_must_come_comes(real: Service, choice: Any, temperature: float) -> None:
    """TOOL-06"""
    asked = {
        "tools": [WEATHER, CLOCK],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 150,
        "temperature": temperature,
    }
    said = "What is the weather in Oslo? Use the tool."
    whole = real.chat(said, **asked)
    message = whole.body["choices"][0]["message"]
    [made] = message["tool_calls"]
    assert (whole.finish, message["content"]) == ("tool_calls", None)
    assert made["id"] and made["type"] == "function"
    arguments = json.loads(made["function"]["arguments"])
    if made["function"]["name"] == "get_weather":
        assert set(arguments) == {"city"}
        assert isinstance(arguments["city"], str)
    else:
        assert choice == "required"
        assert arguments["zone"] in ("UTC", "CET")
    streamed = real.chat_stream(said, **asked)
    [again] = streamed_calls(streamed.choices)
    assert again["function"] == made["function"]
    assert (streamed.finish, streamed.text) == ("tool_calls", "")


def test_each_choice_has_its_call(real: Service) -> None:
    """TOOL-06"""
    asked: dict[str, Any] = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": False}
    streamed = real.chat_stream("What time is it?", n=2, max_tokens=100, temperature=1.0, **asked)
    for index in range(2):
        [made] = streamed_calls(streamed.choices, index)
        assert json.loads(made["function"]["arguments"])["zone"] in ("UTC", "CET")
    reasons = [choice["finish_reason"] for choice in streamed.choices if choice["finish_reason"]]
    assert reasons == ["tool_calls", "tool_calls"]


@pytest.mark.parametrize("parallel", [None, True])
def test_several_calls_have_their_own_indexes_and_ids(real: Service, parallel: bool | None) -> None:
    """TOOL-06"""
    asked: dict[str, Any] = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": parallel}
    whole = real.chat("The time in UTC and in CET?", max_tokens=200, **asked)
    calls = whole.body["choices"][0]["message"]["tool_calls"]
    assert len({made["id"] for made in calls}) == len(calls) >= 1
    streamed = real.chat_stream("The time in UTC and in CET?", max_tokens=200, **asked)
    assert [made["function"] for made in streamed_calls(streamed.choices)] == [made["function"] for made in calls]


def test_function_without_parameters(real: Service) -> None:
    asked: dict[str, Any] = {"tools": [NOTHING], "tool_choice": "required", "parallel_tool_calls": False}
    [made] = real.chat("Ping.", max_tokens=100, **asked).body["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] == "ping"
    assert isinstance(json.loads(made["function"]["arguments"]), dict)


def test_only_allowed_tools_are_called(real: Service) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    answer = real.chat(
        "What is the weather in Oslo?",
        max_tokens=150,
        tools=[WEATHER, CLOCK],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
    )
    calls = answer.body["choices"][0]["message"]["tool_calls"]
    assert {made["function"]["name"] for made in calls} == {"get_time"}


@pytest.mark.parametrize("choice", [None, "auto"])
def test_model_that_may_call_answers_in_one_way_or_the_other(real: Service, choice: str | None) -> None:
    whole = real.chat("Say hello.", max_tokens=40, tools=[WEATHER], tool_choice=choice)
    message = whole.body["choices"][0]["message"]
    streamed = real.chat_stream("Say hello.", max_tokens=40, tools=[WEATHER], tool_choice=choice)
    assert streamed.text == (message["content"] or "")
    assert streamed.finish == whole.finish
    assert bool(message.get("tool_calls")) is (whole.finish == "tool_calls")


def test_tools_that_are_not_to_be_called_are_not_in_the_prompt(real: Service) -> None:
    plain = real.chat("Say hello.", max_tokens=4)
    none = real.chat("Say hello.", max_tokens=4, tools=[WEATHER], tool_choice="none")
    assert (none.text, none.prompt_tokens) == (plain.text, plain.prompt_tokens)
    assert real.chat("Say hello.", max_tokens=4, tools=[WEATHER]).prompt_tokens > plain.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        *[({"tools": [WEATHER], "tool_choice": bad}, "tool_choice") for bad in anything("sometimes", 5)],
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [WEATHER], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        (
            {"tools": [tool("f", {"x": {"type": "string", "pattern": "(?=a)"}})], "tool_choice": "required"},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [tool("f", {"x": {"type": "string", "pattern": "(?=a)"}}, strict=True)]},
            "tools[0].function.parameters",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_what_is_wrong_about_tools_is_named_and_reaches_no_model(fake: Service, fields: Any, param: str) -> None:
    """TOOL-06"""
    with fake.nothing_starts():
        for stream in (False, True):
            error = error_of(fake.post(CHATS, chat_body("x", stream=stream, **fields)), 400)
            assert (error["param"], param in error["message"]) == (param, True)
