"""The JSON of chat's answers, whole and in chunks."""

from typing import Any

import msgspec
import pytest

from api.protocol.answers import Generation, timings_json, usage_json
from api.protocol.chat import ChatAnswer
from api.protocol.choices import Answer, Call, Choice, Part
from tasks.contracts import FinishReason, GenerateRequest, Timings, TokenLogprob, Usage
from tests.unit.fake_jobs import call, delta, ended, finished, reasoning, scored

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
REQUEST = GenerateRequest(id="chatcmpl-1", model="m", reply_to="a", created_ms=1_700_000_000_999, messages=[])


def format_of(include_usage: bool = False, **fields: Any) -> ChatAnswer:
    return ChatAnswer(Generation(msgspec.structs.replace(REQUEST, **fields), False, include_usage))


def deltas(chunks: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(choice["index"], choice["delta"]) for chunk in chunks for choice in chunk["choices"]]


# -- whole answers ---------------------------------------------------------------------------------


def whole(choices: list[Choice], **fields: Any) -> dict[str, Any]:
    end = finished()
    return format_of(**fields).whole(Answer(choices, end.usage, end.timings), queue_ms=1.5)


def test_whole_answer() -> None:
    answer = whole([Choice("Hi", finish_reason=FinishReason.LENGTH)])
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


def test_choices_are_numbered() -> None:
    answer = whole([Choice("a"), Choice("b"), Choice("c")], n=3)
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]


@pytest.mark.parametrize(("text", "content"), [("", None), ("Let me see.", "Let me see.")])
def test_answer_that_calls_tools(text: str, content: str | None) -> None:
    calls = [Call("call_1", "weather", '{"city": "Oslo"}'), Call("call_2", "time", "{}")]
    [choice] = whole([Choice(text, calls=calls, finish_reason=FinishReason.TOOL_CALLS)])["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == content
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]


@pytest.mark.parametrize("text", ["", "42"])
def test_reasoning_is_beside_the_content(text: str) -> None:
    [choice] = whole([Choice(text, reasoning="Hm.")])["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == (text, "Hm.")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, None),
        (
            1,
            {
                "content": [
                    {
                        "token": "é",
                        "logprob": -0.5,
                        "bytes": [0xC3, 0xA9],
                        "top_logprobs": [{"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]}],
                    }
                ],
                "refusal": None,
            },
        ),
    ],
)
def test_logprobs_are_there_when_asked_for(asked: int | None, expected: Any) -> None:
    token = "é".encode()
    [choice] = whole([Choice("é", logprobs=[TokenLogprob(token, -0.5, [(token, -0.5)])])], logprobs=asked)["choices"]
    assert choice["logprobs"] == expected


# -- chunks ----------------------------------------------------------------------------------------


def test_text_and_reasoning_in_chunks() -> None:
    answer = format_of()
    chunks = answer.opening() + answer.part(reasoning("Hm.")) + answer.part(delta("42"))
    assert deltas(chunks) == [
        (0, {"role": "assistant", "content": ""}),
        (0, {"reasoning_content": "Hm."}),
        (0, {"content": "42"}),
    ]


def test_id_and_name_of_a_call_come_once() -> None:
    answer = format_of(tools=[WEATHER])
    parts = [call(0, "weather", '{"ci'), call(0, "", 'ty": 1}'), call(1, "time"), call(1, "", "{}")]
    chunks = answer.opening() + [chunk for part in parts for chunk in answer.part(part)]
    assert deltas(chunks)[0] == (0, {"role": "assistant", "content": None})
    assert [said["tool_calls"] for _, said in deltas(chunks)[1:]] == [
        [{"index": 0, "id": "call_00", "type": "function", "function": {"name": "weather", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"ci'}}],
        [{"index": 0, "function": {"arguments": 'ty": 1}'}}],
        [{"index": 1, "id": "call_01", "type": "function", "function": {"name": "time", "arguments": ""}}],
        [{"index": 1, "function": {"arguments": "{}"}}],
    ]


def test_logprobs_are_on_the_chunk_of_their_text() -> None:
    [chunk] = format_of(logprobs=2).part(scored((" a", -0.25), (" b", -1.0)))[-1:]
    [choice] = chunk["choices"]
    assert choice["delta"] == {"content": " a b"}
    assert [token["token"] for token in choice["logprobs"]["content"]] == [" a", " b"]
    assert [len(token["top_logprobs"]) for token in choice["logprobs"]["content"]] == [2, 2]


def test_each_choice_has_its_role_and_its_end() -> None:
    answer = format_of(n=3)
    parts: list[Part] = [delta("a"), ended(0), delta("b", choice=1), ended(1, FinishReason.LENGTH)]
    chunks = answer.opening() + [chunk for part in parts for chunk in answer.part(part)]
    assert answer.heartbeat()["choices"][0]["index"] == 2
    chunks += answer.closing(finished(), 0.0)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    role: dict[str, Any] = {"role": "assistant", "content": ""}
    assert [(choice["index"], choice["delta"], choice["finish_reason"]) for choice in choices] == [
        (0, role, None),
        (0, {"content": "a"}, None),
        (0, {}, "stop"),
        (1, role, None),
        (1, {"content": "b"}, None),
        (1, {}, "length"),
        (2, role, None),
        (2, {}, "stop"),
    ]


@pytest.mark.parametrize("include_usage", [False, True])
def test_closing_chunks(include_usage: bool) -> None:
    chunks = format_of(include_usage).closing(finished(), queue_ms=3.0)
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
    usage = usage_json(Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=4, reasoning_tokens=6))
    assert usage["total_tokens"] == 12
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 6}


def test_timings_of_nothing_divide_by_nothing() -> None:
    timings = timings_json(Timings(), 0.0)
    assert (timings["prompt_per_second"], timings["predicted_per_second"]) == (0.0, 0.0)
