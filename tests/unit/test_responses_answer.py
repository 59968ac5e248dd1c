"""Frames -> a response, whole and as events. The SDK's own types say whether the shapes are right."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from api.protocol.choices import AnswerBuilder
from api.protocol.responses_answer import ResponseAnswer
from api.protocol.responses_request import parse_response
from tasks.contracts import ChoiceFinished, Delta, FinishReason, GenerateRequest, ToolCall
from tests.unit.fake_jobs import call, delta, finished, reasoning, scored

REQUEST = GenerateRequest(id="resp_1", model="m", reply_to="a", created_ms=1_700_000_000_999)
TYPES: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
Frame = Delta | ToolCall | ChoiceFinished
ERROR = {"message": "'messages' are too long.", "type": "server_error", "param": "messages", "code": "worker_lost"}

MIXED: list[Frame] = [
    reasoning("Let me "),
    reasoning("see."),
    delta("One "),
    delta("moment."),
    call(0, "weather", '{"city":'),
    call(0, arguments='"Oslo"}'),
    call(1, "clock"),
    call(1, arguments="{}"),
]


def answer() -> ResponseAnswer:
    parsed = parse_response({"model": "m", "input": "hi", "metadata": {"a": "b"}})
    return ResponseAnswer(REQUEST, parsed.echo)


def streamed(frames: list[Frame], reason: FinishReason = FinishReason.STOP) -> list[dict[str, Any]]:
    """Each event as a client reads it, checked against the SDK's types."""
    format_ = answer()
    events = format_.opening()
    for frame in frames:
        events += format_.part(frame)
    events += format_.closing(finished(reason), 12.0)
    return checked(events)


def checked(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for event in events:
        assert TYPES.validate_python(event).type == event["type"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    copies: list[dict[str, Any]] = json.loads(json.dumps(events))
    return copies


def whole(frames: list[Frame], reason: FinishReason = FinishReason.STOP) -> dict[str, Any]:
    builder = AnswerBuilder()
    for frame in frames:
        builder.add(frame)
    response = answer().whole(builder.end(finished(reason)), 12.0)
    Response.model_validate(response)
    return response


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


TEXT_EVENTS = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


def test_events_of_a_text() -> None:
    events = streamed([delta("Hello"), delta(" world")])
    assert types(events) == ["created", "in_progress", *TEXT_EVENTS, "completed"]
    added, part, first, second, done, part_done, item_done = events[2:-1]
    assert added["item"] | {"id": ""} == {
        "id": "",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert (first["delta"], second["delta"], done["text"], part_done["part"]["text"]) == (
        "Hello",
        " world",
        "Hello world",
        "Hello world",
    )
    assert {event["item_id"] for event in (part, first, second, done, part_done)} == {added["item"]["id"]}
    assert item_done["item"]["status"] == "completed"
    assert events[-1]["response"]["output"] == [item_done["item"]]


def test_events_of_reasoning_text_and_calls() -> None:
    events = streamed(MIXED)
    thinking = [name.replace("output_text", "reasoning_text") for name in TEXT_EVENTS]
    first_call = [*CALL_EVENTS[:2], "function_call_arguments.delta", *CALL_EVENTS[2:]]
    assert types(events) == ["created", "in_progress", *thinking, *TEXT_EVENTS, *first_call, *CALL_EVENTS, "completed"]
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.added"] == [0, 1, 2, 3]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["id"].split("_")[0] for item in done] == ["rs", "msg", "fc", "fc"]
    assert {item["status"] for item in done} == {"completed"}
    assert done[0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert done[0]["summary"] == []
    calls = [(item["call_id"], item["name"], item["arguments"]) for item in done[2:]]
    assert calls == [("call_00", "weather", '{"city":"Oslo"}'), ("call_01", "clock", "{}")]


def test_the_response_of_the_first_events_is_empty_and_in_progress() -> None:
    for event in streamed([delta("x")])[:2]:
        response = event["response"]
        assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)
        assert response["metadata"] == {"a": "b"}


@pytest.mark.parametrize("reason", list(FinishReason))
@pytest.mark.parametrize("frames", [[], [delta("x")], [reasoning("x")], MIXED[2:], MIXED])
def test_the_whole_answer_is_that_of_the_last_event(frames: list[Frame], reason: FinishReason) -> None:
    def without_ids(response: dict[str, Any]) -> dict[str, Any]:
        items = [{**item, "id": ""} for item in response["output"]]
        return response | {"output": items, "completed_at": None}

    assert without_ids(whole(frames, reason)) == without_ids(streamed(frames, reason)[-1]["response"])


def test_members_of_a_whole_answer() -> None:
    response = whole([delta("x")])
    assert (response["id"], response["object"], response["model"]) == ("resp_1", "response", "m")
    assert response["created_at"] == 1_700_000_000 <= response["completed_at"]
    assert (response["status"], response["error"], response["incomplete_details"]) == ("completed", None, None)
    assert response["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 13,
    }
    assert response["timings"]["queue_ms"] == 12.0


@pytest.mark.parametrize("frames", [[delta("x")], [reasoning("x")]])
def test_an_answer_cut_at_the_limit_is_incomplete(frames: list[Frame]) -> None:
    events = streamed(frames, FinishReason.LENGTH)
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["completed_at"] is None


@pytest.mark.parametrize(("frames", "kinds"), [([], ["message"]), ([reasoning("x")], ["reasoning", "message"])])
def test_an_answer_without_a_word_has_an_empty_message(frames: list[Frame], kinds: list[str]) -> None:
    output = streamed(frames)[-1]["response"]["output"]
    assert [item["type"] for item in output] == kinds
    assert output[-1]["content"][0]["text"] == ""


def test_an_empty_delta_is_no_event() -> None:
    assert types(streamed([delta(""), delta("x"), delta("")])).count("output_text.delta") == 1


def test_heartbeats_have_their_own_numbers() -> None:
    format_ = answer()
    events = [*format_.opening(), format_.heartbeat(), format_.heartbeat(), *format_.part(delta("x"))]
    assert types(checked(events))[:4] == ["created", "in_progress", "in_progress", "in_progress"]


def test_log_probabilities_are_with_the_deltas_and_with_the_whole() -> None:
    events = streamed([scored(("Hel", -0.5), ("lo", -1.0)), scored(("!", -2.0))])
    by_type = {event["type"]: event for event in events}
    [text] = events[-1]["response"]["output"][0]["content"]
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [[token["token"] for token in part] for part in deltas] == [["Hel", "lo"], ["!"]]
    assert (
        [token for part in deltas for token in part]
        == text["logprobs"]
        == by_type["response.output_text.done"]["logprobs"]
    )
    assert text["logprobs"][0]["top_logprobs"][1] == {"token": "?", "logprob": -9.0, "bytes": [63]}


@pytest.mark.parametrize(
    ("kind", "code"), [("server_error", "server_error"), ("invalid_request_error", "invalid_prompt")]
)
def test_a_failure_ends_what_was_open(kind: str, code: str) -> None:
    format_ = answer()
    events = [*format_.opening(), *format_.part(delta("x")), *format_.failure({"error": ERROR | {"type": kind}})]
    *_, item, failed, error = checked(events)
    assert item["item"]["status"] == "incomplete"
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": code, "message": "'input' are too long."}
    assert failed["response"]["output"] == [item["item"]]
    assert (error["type"], error["code"], error["param"]) == ("error", "worker_lost", "input")
    assert error["error"] == {"message": "'input' are too long.", "type": kind, "param": "input", "code": "worker_lost"}


def test_a_failure_before_the_first_word() -> None:
    format_ = answer()
    events = checked([*format_.opening(), *format_.failure({"error": ERROR})])
    assert types(events) == ["created", "in_progress", "failed", "error"]
