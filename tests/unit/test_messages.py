"""OpenAI messages -> plain ones."""

from typing import Any

import pytest

from api.protocol.fields import Fields, InvalidRequest
from api.protocol.messages import read_messages
from tests.unit.cases import anything


def read(messages: Any) -> list[dict[str, Any]]:
    return read_messages(Fields({"messages": messages}))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def call(arguments: Any = "{}", **other: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}} | other


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant"} | fields


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (user("x"), {"role": "user", "content": "x"}),
        (user(""), {"role": "user", "content": ""}),
        ({"role": "system", "content": "x", "id": 194, "opts": {"visible": False}}, {"role": "system", "content": "x"}),
        ({"role": "developer", "content": "x"}, {"role": "developer", "content": "x"}),
        (user("x") | {"name": "ann"}, {"role": "user", "content": "x", "name": "ann"}),
        (user("x") | {"name": None}, {"role": "user", "content": "x"}),
        (user([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]), {"role": "user", "content": "a b"}),
        (user([{"type": "input_text", "text": "a"}]), {"role": "user", "content": "a"}),
        (
            assistant(content=[{"type": "refusal", "refusal": "no"}]),
            {"role": "assistant", "content": "no"},
        ),
        (assistant(content=""), {"role": "assistant", "content": ""}),
        (assistant(content=None, refusal="no"), {"role": "assistant", "content": "no"}),
        (
            assistant(content="x", reasoning_content="why"),
            {"role": "assistant", "content": "x", "reasoning_content": "why"},
        ),
        (
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
        ),
        ({"role": "tool", "content": "x"}, {"role": "tool", "content": "x"}),
        ({"role": "function", "name": "f", "content": "x"}, {"role": "tool", "name": "f", "content": "x"}),
    ],
)
def test_plain_message(message: dict[str, Any], plain: dict[str, Any]) -> None:
    assert read([message]) == [plain]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_turn_with_tool_calls_needs_no_content(content: dict[str, Any]) -> None:
    [plain] = read([assistant(tool_calls=[call()], **content)])
    assert plain["content"] == ""
    assert plain["tool_calls"] == [call()]


def test_several_calls_keep_their_order_and_may_lack_ids() -> None:
    """TOOL-01"""
    calls = [call('{"city": "Oslo"}'), call('{"city": "Rome"}', id=None), call("{}", id="call_3")]
    results = [{"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "-3"}]}]
    turn, result = read([assistant(tool_calls=calls), *results])
    assert [made.get("id") for made in turn["tool_calls"]] == ["call_1", None, "call_3"]
    assert [made["function"]["arguments"] for made in turn["tool_calls"]] == [
        '{"city": "Oslo"}',
        '{"city": "Rome"}',
        "{}",
    ]
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "-3"}


@pytest.mark.parametrize("arguments", ["", "{}", "null", '"{}"', "not json", "[1,2]", '{"city": "Oslo"}'])
def test_arguments_stay_the_string_they_are(arguments: str) -> None:
    [plain] = read([assistant(content=None, tool_calls=[call(arguments)])])
    assert plain["tool_calls"][0]["function"]["arguments"] == arguments


def test_arguments_as_object_become_a_string() -> None:
    [plain] = read([assistant(content=None, tool_calls=[call({"city": "Zürich"})])])
    assert plain["tool_calls"][0]["function"]["arguments"] == '{"city":"Zürich"}'


def test_older_function_call_becomes_a_tool_call() -> None:
    [plain] = read([assistant(content=None, function_call={"name": "f", "arguments": "{}"})])
    assert plain["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        *[(bad, "messages") for bad in anything(None, [], "hi", {}, 5)],
        (["hi"], "messages[0]"),
        ([None], "messages[0]"),
        ([[]], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([user("x"), {"role": "user"}], "messages[1].content"),
        *[([user(bad)], "messages[0].content") for bad in anything(None, 5, True, {}, [])],
        ([assistant(content=None)], "messages[0].content"),
        ([assistant(content=None, tool_calls=[])], "messages[0].content"),
        ([{"role": "tool", "content": None}], "messages[0].content"),
        ([user("x") | {"name": 5}], "messages[0].name"),
        ([{"role": "tool", "tool_call_id": 5, "content": "x"}], "messages[0].tool_call_id"),
        ([user(["text"])], "messages[0].content[0]"),
        ([user([None])], "messages[0].content[0]"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user([{"type": "text", "text": 5}])], "messages[0].content[0].text"),
        ([user([{"text": "x"}])], "messages[0].content[0].type"),
        ([user([{"type": "poem", "text": "x"}])], "messages[0].content[0].type"),
        ([user([{"type": 5, "text": "x"}])], "messages[0].content[0].type"),
        ([assistant(tool_calls="x")], "messages[0].tool_calls"),
        ([assistant(tool_calls=["x"])], "messages[0].tool_calls[0]"),
        ([assistant(tool_calls=[{}])], "messages[0].tool_calls[0].function"),
        ([assistant(tool_calls=[{"function": {}}])], "messages[0].tool_calls[0].function.name"),
        ([assistant(tool_calls=[call(5)])], "messages[0].tool_calls[0].function.arguments"),
        ([assistant(tool_calls=[call(["a"])])], "messages[0].tool_calls[0].function.arguments"),
        ([assistant(tool_calls=[call(id=5)])], "messages[0].tool_calls[0].id"),
        ([assistant(tool_calls=[call(type="custom")])], "messages[0].tool_calls[0].type"),
    ],
)
def test_malformed_turn_is_named(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(messages)
    assert caught.value.param == param
    assert "messages" in caught.value.message


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": "x"},
        {"type": "image_url", "url": "x"},
        {"type": "image", "image": "x"},
        {"type": "input_image", "image_url": "x"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "video_url", "video_url": {"url": "x"}},
    ],
)
def test_part_that_is_no_text_says_that_only_text_is_taken(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="text only") as caught:
        read([user([{"type": "text", "text": "What is this?"}, part])])
    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.code == "unsupported_value"
