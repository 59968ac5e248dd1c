"""Bodies of chat requests."""

from typing import Any

import msgspec
import pytest

from api.protocol.chat import parse_chat
from api.protocol.fields import InvalidRequest
from tasks.contracts import GenerateRequest, ToolChoice
from tests.unit.cases import anything

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
MAX_N = 8


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields


def parse(**fields: Any) -> GenerateRequest:
    return parse_chat(chat(**fields), MAX_N).request


def test_unknown_and_newer_fields_are_ignored() -> None:
    """PAR-08, with what asks for nothing."""
    body = chat(
        user="u1", metadata={"a": "b"}, store=False, parallel_tool_calls=True, logit_bias={}, service_tier="auto",
        chat_id="x", tool_servers=[], n=1, logprobs=False, top_logprobs=0, response_format={"type": "text"},
        modalities=["text"], functions=None, tools=None, tool_choice=None, stop=None, seed=None, temperature=None,
        audio=None, grammar="", reasoning_effort=None, json_schema=None, schema=None, min_tokens=0, ignore_eos=False,
        mirostat=0, typical_p=1, xtc_probability=0, dry_multiplier=0, function_call="auto", verbosity="low",
    )  # fmt: skip
    assert parse_chat(body, MAX_N) == parse_chat(chat(), MAX_N)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {"search_context_size": "low"}),
        ("web_search_options", {}),
        ("add_generation_prompt", False),
    ],
)
def test_known_and_not_served_is_said(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**{"tools": [WEATHER], field: value})
    assert caught.value.code == "unsupported_value"
    assert caught.value.param == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("model", bad) for bad in anything(None, "", " ", 5, [], True)],
        *[("n", bad) for bad in anything(0, -1, "1", True, 1.5, MAX_N + 1, 10**25)],
        *[("logprobs", bad) for bad in anything("yes", 1)],
        *[("modalities", bad) for bad in anything("text", {})],
        *[("chat_template_kwargs", bad) for bad in anything("x", {"messages": []}, {"a b": 1}, {"tools": 1})],
        *[("reasoning_effort", bad) for bad in anything("", "huge", 5, {"effort": "low"})],
        # PAR-02
        *[("temperature", bad) for bad in anything(-1, 5, "hot")],
        *[("top_p", bad) for bad in anything(2, -0.5)],
        *[("max_tokens", bad) for bad in anything("10", 0)],
        *[("stream", bad) for bad in anything("yes", 1)],
        ("presence_penalty", 9),
    ],
)
def test_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**{field: value})
    assert caught.value.param == field
    assert field in caught.value.message


@pytest.mark.parametrize("n", [1, 2, MAX_N, 3.0])
def test_several_choices(n: float) -> None:
    """PAR-01"""
    assert parse(n=n).n == n


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs(fields: dict[str, Any], expected: int | None) -> None:
    """PAR-06"""
    assert parse(**fields).logprobs == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 3},
        {"top_logprobs": 3, "logprobs": False},
        *[{"logprobs": True, "top_logprobs": bad} for bad in anything(-1, 21, "3", True, 1.5)],
    ],
)
def test_wrong_top_logprobs_are_named(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
            {"reasoning_effort": "none", "enable_thinking": True, "x": 1},
        ),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "x-high"}},
            {"reasoning_effort": "x-high"},
        ),
    ],
)
def test_what_the_template_is_told(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse(**fields).template_kwargs == expected


def test_request_survives_the_way_to_the_worker() -> None:
    request = parse(
        tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}}, n=3, logprobs=True,
        chat_template_kwargs={"enable_thinking": False}, seed=-5, dry_sequence_breakers=["\n", "x"],
        logit_bias={"5": -100, "Hello": False}, top_logprobs=2, parallel_tool_calls=False,
        response_format={"type": "json_object"},
    )  # fmt: skip
    assert (request.tool_choice, request.tool_name, request.n) == (ToolChoice.REQUIRED, "weather", 3)
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(request)), GenerateRequest) == request
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerateRequest) == request
