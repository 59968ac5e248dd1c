"""Bodies of chat and completions requests, and the JSON of their answers."""

from typing import Any

import msgspec
import pytest

from api.protocol.answers import timings_json, usage_json
from api.protocol.chat import ChatAnswer, parse_chat
from api.protocol.completions import CompletionAnswer, parse_completion
from api.protocol.fields import InvalidRequest
from tasks.contracts import FinishReason, GenerateRequest, Timings, Usage
from tests.unit.cases import anything
from tests.unit.fake_jobs import finished

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}, "strict": True}}
REQUEST = GenerateRequest(id="chatcmpl-1", model="m", reply_to="a", created_ms=1_700_000_000_999, prompts=["Once"])


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi"} | fields


def test_unknown_and_newer_fields_are_ignored() -> None:
    body = chat(
        user="u1", metadata={"a": "b"}, store=False, parallel_tool_calls=True, logit_bias={}, service_tier="auto",
        chat_id="x", tool_servers=[], n=1, logprobs=False, top_logprobs=0, response_format={"type": "text"},
        modalities=["text"], functions=None, tools=None, tool_choice=None, stop=None, seed=None, temperature=None,
        audio=None, grammar="", reasoning_effort="low",
    )  # fmt: skip
    assert parse_chat(body) == parse_chat(chat())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", 3.0),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"50256": -100}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "p", "schema": {}}}),
        ("grammar", 'root ::= "a"'),
        ("json_schema", {"type": "object"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "weather"}}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {"search_context_size": "low"}),
    ],
)
def test_known_and_not_served_is_said(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(chat(**{"tools": [WEATHER], field: value}))
    assert caught.value.code == "unsupported_value"
    assert caught.value.param == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("model", bad) for bad in anything(None, "", " ", 5, [], True)],
        *[("n", bad) for bad in anything(0, -1, "1", True)],
        *[("logprobs", bad) for bad in anything("yes", 1)],
        ("top_logprobs", -1),
        *[("logit_bias", bad) for bad in anything("x", [])],
        *[("response_format", bad) for bad in anything("json", [])],
        *[("tools", bad) for bad in anything("x", {}, True)],
        *[("tool_choice", bad) for bad in anything("sometimes", 5, True)],
        *[("modalities", bad) for bad in anything("text", {})],
        *[("chat_template_kwargs", bad) for bad in anything("x", {"messages": []}, {"a b": 1}, {"tools": 1})],
    ],
)
def test_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(chat(**{field: value}))
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ("x", "tools[1]"),
        ({}, "tools[1].type"),
        ({"type": "custom"}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function"),
        ({"type": "function", "function": "f"}, "tools[1].function"),
        ({"type": "function", "function": {}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": ""}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": 5}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools[1].function.parameters"),
        ({"type": "function", "function": {"name": "f", "description": 5}}, "tools[1].function.description"),
        ({"type": "function", "function": {"name": "f", "strict": "yes"}}, "tools[1].function.strict"),
        ({"type": "function", "function": {"name": "f", "parameters": {"maximum": 10**25}}}, "tools[1]"),
    ],
)
def test_bad_tool_is_named(tool: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(chat(tools=[WEATHER, tool]))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "tools"),
    [
        ({"tools": [WEATHER]}, [WEATHER]),
        ({"tools": [WEATHER], "tool_choice": "auto"}, [WEATHER]),
        ({"tools": [WEATHER], "tool_choice": "none"}, None),
        ({"tools": []}, None),
        ({"tool_choice": "auto"}, None),
    ],
)
def test_tools_are_rendered_unless_none_are_wanted(fields: dict[str, Any], tools: Any) -> None:
    assert parse_chat(chat(**fields)).request.tools == tools


def test_request_survives_the_way_to_the_worker() -> None:
    request = parse_chat(chat(tools=[WEATHER], chat_template_kwargs={"enable_thinking": False}, seed=-5)).request
    assert msgspec.convert(msgspec.to_builtins(request), GenerateRequest) == request
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerateRequest) == request


@pytest.mark.parametrize("prompt", ["hi", "", " ", ["hi"], [""]])
def test_prompt(prompt: Any) -> None:
    expected = prompt[0] if isinstance(prompt, list) else prompt
    assert parse_completion(completion(prompt=prompt)).request.prompts == [expected]


@pytest.mark.parametrize("prompt", [None, [], {}, 5, [None], ["a", "b"], [1, 2], [[1, 2]], [{}]])
def test_wrong_prompt_is_named(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(completion(prompt=prompt))
    assert caught.value.param == "prompt"
    assert "prompt" in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("best_of", 2), ("n", 2), ("suffix", "end"), ("logprobs", 0), ("logprobs", 5), ("logit_bias", {"1": 1})],
)
def test_known_and_not_served_in_completions_is_said(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(completion(**{field: value}))
    assert (caught.value.code, caught.value.param) == ("unsupported_value", field)


def test_neutral_values_of_unserved_completions_fields_pass() -> None:
    body = completion(best_of=1, n=1, suffix=None, logprobs=None, logit_bias={}, echo=None)
    assert parse_completion(body) == parse_completion(completion())


def test_whole_chat_answer() -> None:
    answer = ChatAnswer(REQUEST).whole("Hi", finished(FinishReason.LENGTH), queue_ms=1.5)
    assert answer["object"] == "chat.completion"
    assert (answer["id"], answer["created"], answer["model"]) == ("chatcmpl-1", 1_700_000_000, "m")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer["usage"]["total_tokens"] == 13
    assert answer["timings"]["queue_ms"] == 1.5


@pytest.mark.parametrize("echo", [False, True])
def test_whole_completion_answer(echo: bool) -> None:
    answer = CompletionAnswer(REQUEST, echo=echo).whole(" upon", finished(), queue_ms=0)
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == ("Once upon" if echo else " upon")
    assert answer["usage"]["completion_tokens"] == 2


def test_completion_stream_begins_with_the_echo() -> None:
    opening = CompletionAnswer(REQUEST, echo=True).opening()
    assert opening is not None
    assert opening["choices"][0]["text"] == "Once"
    assert CompletionAnswer(REQUEST).opening() is None


@pytest.mark.parametrize("include_usage", [False, True])
def test_closing_chunks(include_usage: bool) -> None:
    chunks = ChatAnswer(REQUEST, include_usage).closing(finished(), queue_ms=3.0)
    assert chunks[0]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert chunks[-1]["timings"]["predicted_per_second"] == 250.0
    if include_usage:
        assert chunks[0]["usage"] is None
        assert chunks[1]["choices"] == []
        assert chunks[1]["usage"] == usage_json(finished().usage)
    else:
        assert len(chunks) == 1
        assert "usage" not in chunks[0]


def test_usage_adds_up() -> None:
    usage = usage_json(Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=4))
    assert usage["total_tokens"] == 12
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


def test_timings_of_nothing_divide_by_nothing() -> None:
    timings = timings_json(Timings(), 0.0)
    assert (timings["prompt_per_second"], timings["predicted_per_second"]) == (0.0, 0.0)
