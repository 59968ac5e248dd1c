"""Bodies of /v1/responses -> requests of the queue."""

from typing import Any

import pytest

from api.protocol.fields import InvalidRequest
from api.protocol.responses_request import own_param, own_terms, parse_response
from tasks.contracts import GenerateRequest, GrammarKind, ToolChoice
from tests.unit.cases import anything

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "of a city", "parameters": PARAMETERS, "strict": True}
CLOCK = {"type": "function", "name": "clock", "parameters": None, "strict": None}
SCHEMA = {"type": "json_schema", "name": "city", "schema": PARAMETERS, "strict": True}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "hi"} | fields


def request_of(**fields: Any) -> GenerateRequest:
    return parse_response(body(**fields)).generation.request


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_response(body(**fields))
    return caught.value


def test_fields_of_the_request() -> None:
    parsed = parse_response(body(max_output_tokens=7, temperature=0.5, top_p=0.9, stream=True, seed=3, min_p=0.1))
    request = parsed.generation.request
    assert (request.model, request.max_tokens, request.n) == ("m", 7, 1)
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    assert (request.sampling.seed, request.sampling.min_p) == (3, 0.1)
    assert (request.logprobs, request.grammar, request.tools) == (None, None, None)
    assert parsed.generation.stream


def test_tools_are_nested_as_chat_has_them() -> None:
    request = request_of(tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    assert request.tools == [
        {"type": "function", "function": function},
        {"type": "function", "function": {"name": "clock"}},
    ]
    assert (request.tool_choice, request.parallel_tool_calls) == (ToolChoice.AUTO, False)


@pytest.mark.parametrize(
    ("choice", "wanted", "name", "tools"),
    [
        ("auto", ToolChoice.AUTO, None, ["weather", "clock"]),
        ("required", ToolChoice.REQUIRED, None, ["weather", "clock"]),
        ("none", ToolChoice.AUTO, None, []),
        ({"type": "function", "name": "clock"}, ToolChoice.REQUIRED, "clock", ["weather", "clock"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
            ToolChoice.REQUIRED,
            None,
            ["clock"],
        ),
    ],
)
def test_tool_choice(choice: Any, wanted: ToolChoice, name: str | None, tools: list[str]) -> None:
    request = request_of(tools=[WEATHER, CLOCK], tool_choice=choice)
    assert (request.tool_choice, request.tool_name) == (wanted, name)
    assert [tool["function"]["name"] for tool in request.tools or []] == tools


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, GrammarKind.JSON_OBJECT),
        (SCHEMA, GrammarKind.JSON_SCHEMA),
    ],
)
def test_text_format(given: Any, kind: GrammarKind | None) -> None:
    grammar = request_of(text={"format": given, "verbosity": "low"}).grammar
    assert (grammar and grammar.kind) == kind


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"top_logprobs": 2}, 2),
        ({"top_logprobs": 0, "include": ["reasoning.encrypted_content"]}, None),
    ],
)
def test_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert request_of(**fields).logprobs == logprobs


def test_reasoning_effort_reaches_the_template() -> None:
    assert request_of(reasoning={"effort": "low", "summary": "auto"}).template_kwargs["reasoning_effort"] == "low"


def test_what_the_answer_repeats() -> None:
    asked: dict[str, Any] = {
        "instructions": "be brief",
        "max_output_tokens": 7,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "temperature": 0.5,
        "tool_choice": {"type": "function", "name": "weather"},
        "tools": [WEATHER],
        "top_logprobs": 2,
        "top_p": 0.9,
        "user": "u",
    }
    echo = parse_response(body(**asked, text={"format": SCHEMA}, reasoning={"effort": "low"})).echo
    assert {key: echo[key] for key in asked} == asked
    assert echo["text"] == {"format": SCHEMA, "verbosity": "medium"}
    assert echo["reasoning"] == {"effort": "low", "summary": None}


def test_what_holds_when_nothing_was_asked_for() -> None:
    echo = parse_response(body()).echo
    assert (echo["store"], echo["background"], echo["truncation"]) == (False, False, "disabled")
    assert (echo["tools"], echo["tool_choice"], echo["metadata"]) == ([], "auto", {})
    assert echo["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "background": False, "previous_response_id": None, "conversation": None, "prompt": None},
        {"truncation": "auto", "service_tier": "flex", "stream_options": {"include_obfuscation": False}},
        {"include": ["web_search_call.action.sources"], "max_tool_calls": 3, "prompt_cache_retention": "24h"},
        {"a_field_of_tomorrow": 1, "n": 1},
    ],
)
def test_what_changes_no_answer_is_accepted(fields: dict[str, Any]) -> None:
    assert request_of(**fields) == request_of()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", True),
        ("background", True),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("prompt", {"id": "pmpt_1"}),
        ("context_management", [{"type": "compaction"}]),
        ("moderation", {"model": "m"}),
        ("messages", [{"role": "user", "content": "x"}]),
        ("max_tokens", 5),
        ("response_format", {"type": "text"}),
        ("reasoning_effort", "low"),
        ("n", 2),
    ],
)
def test_what_is_not_served_is_refused(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.param, error.code) == (field, "unsupported_value")


@pytest.mark.parametrize(
    "tool",
    [{"type": kind} for kind in ("web_search", "file_search", "code_interpreter", "mcp", "custom", "image_generation")],
)
def test_built_in_tools_are_refused(tool: dict[str, Any]) -> None:
    error = refused(tools=[WEATHER, tool])
    assert (error.param, error.code) == ("tools[1].type", "unsupported_value")
    error = refused(tools=[WEATHER], tool_choice=tool)
    assert (error.param, error.code) == ("tool_choice.type", "unsupported_value")


def test_an_include_that_is_not_known_is_refused() -> None:
    error = refused(include=["message.output_text.logprobs", "the.moon"])
    assert (error.param, error.code) == ("include[1]", "unsupported_value")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        *[("model", {"model": bad}) for bad in anything(None, "", 5)],
        *[("store", {"store": bad}) for bad in anything("no", 0)],
        *[("stream", {"stream": bad}) for bad in anything("yes", 1)],
        *[("max_output_tokens", {"max_output_tokens": bad}) for bad in anything(0, "5", 1.5, True)],
        *[("temperature", {"temperature": bad}) for bad in anything(3, "hot")],
        *[("top_logprobs", {"top_logprobs": bad}) for bad in anything(-1, 21, "3")],
        *[("include", {"include": bad}) for bad in anything("x", {})],
        ("include[0]", {"include": [5]}),
        *[("metadata", {"metadata": bad}) for bad in anything("x", {"a": 1}, {"a" * 65: ""}, {"a": "b" * 513})],
        ("metadata", {"metadata": {str(number): "" for number in range(17)}}),
        ("truncation", {"truncation": "some"}),
        ("user", {"user": 5}),
        ("text", {"text": "x"}),
        ("text.format", {"text": {"format": "json"}}),
        ("text.verbosity", {"text": {"verbosity": "loud"}}),
        ("text.format.type", {"text": {"format": {"type": "poem"}}}),
        ("text.format.type", {"text": {"format": {"name": "x"}}}),
        *[("text.format.schema", {"text": {"format": SCHEMA | {"schema": bad}}}) for bad in anything(None, 5, "x")],
        ("text.format.strict", {"text": {"format": SCHEMA | {"strict": "yes"}}}),
        ("reasoning", {"reasoning": "low"}),
        ("reasoning.effort", {"reasoning": {"effort": 5}}),
        ("reasoning.effort", {"reasoning": {"effort": "huge"}}),
        ("reasoning.summary", {"reasoning": {"summary": "long"}}),
        *[("tools", {"tools": bad}) for bad in anything("x", {}, True)],
        ("tools[0]", {"tools": ["x"]}),
        ("tools[0].type", {"tools": [{"name": "x"}]}),
        ("tools[0].name", {"tools": [{"type": "function", "function": {"name": "of chat"}}]}),
        ("tools[0].parameters", {"tools": [WEATHER | {"parameters": "x"}]}),
        ("tools[0].strict", {"tools": [WEATHER | {"strict": "x"}]}),
        *[("tool_choice", {"tools": [WEATHER], "tool_choice": bad}) for bad in anything("sometimes", 5, [])],
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice.type", {"tools": [WEATHER], "tool_choice": {"name": "weather"}}),
        ("tool_choice.name", {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "clock"}}),
        ("tool_choice.mode", {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": [WEATHER]}}),
        (
            "tool_choice.tools",
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        ),
        (
            "tool_choice.tools[0].name",
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [CLOCK]}},
        ),
        ("tools", {"tools": [WEATHER | {"of_tomorrow": 2**70}]}),
    ],
)
def test_wrong_field_is_named(param: str, fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert error.param == param
    assert f"'{param}'" in error.message


def test_a_schema_that_cannot_be_enforced_is_named_in_terms_of_this_endpoint() -> None:
    bad = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    assert str(refused(text={"format": SCHEMA | {"schema": bad}}).param).startswith("text.format.schema")
    assert str(refused(tools=[WEATHER | {"parameters": bad}]).param).startswith("tools[0].parameters")


def test_terms_of_the_worker() -> None:
    assert own_terms("'messages' are too many messages") == "'input' are too many messages"
    assert (own_param("messages"), own_param(None)) == ("input", None)
