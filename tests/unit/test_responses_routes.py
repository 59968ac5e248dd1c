"""/v1/responses."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from quart.typing import TestClientProtocol as Client

from api import sse
from api.job_types import Event, ModelLoading, RequestFailed, ServerBusy
from api.protocol.responses_answer import ResponseAnswer
from api.protocol.responses_request import parse_response
from tasks.contracts import ErrorCode, FinishReason, GenerateRequest, Lane
from tests.unit.fake_jobs import CHAT, EMBED, FakeJobs, call, delta, finished, progress
from tests.unit.routes_support import is_error, read

PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": CHAT, "input": "hi"}


def events_of(data: bytes) -> list[dict[str, Any]]:
    """Every event; its name is the type of its data."""
    events = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if lines:
            name, body = lines
            event = json.loads(body.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_response(client: Client, jobs: FakeJobs) -> None:
    response = await client.post(PATH, json=BODY | {"temperature": 0.1, "max_output_tokens": 5, "instructions": "be"})
    answer = await response.get_json()
    [request] = jobs.submitted
    assert answer["output"][0]["content"][0]["text"] == "Hello world"
    assert answer["id"] == request.id == response.headers["x-request-id"]
    assert request.id.startswith("resp_")
    assert answer["created_at"] == request.created_ms // 1000 > 0
    assert (request.reply_to, request.lane) == ("api-1", Lane.INTERACTIVE)
    assert request.messages == [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert (request.sampling.temperature, request.max_tokens) == (0.1, 5)
    assert response.headers["x-queue-wait-ms"] == "12"
    assert (answer["temperature"], answer["max_output_tokens"], answer["store"]) == (0.1, 5, False)
    assert not jobs.cancelled


async def test_stream_has_named_events_and_no_done(client: Client, jobs: FakeJobs) -> None:
    response = await client.post("/responses", json=BODY | {"stream": True})
    data = await read(response)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert b"[DONE]" not in data
    events = events_of(data)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert {event["response"]["id"] for event in events if "response" in event} == {jobs.submitted[0].id}
    assert not jobs.cancelled


async def test_tool_calls(client: Client, jobs: FakeJobs) -> None:
    jobs.running = [call(0, "f", "{}"), finished(FinishReason.TOOL_CALLS)]
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    answer = await (await client.post(PATH, json=BODY | {"tools": tools})).get_json()
    assert [(item["type"], item["name"], item["arguments"]) for item in answer["output"]] == [
        ("function_call", "f", "{}")
    ]
    assert answer["tools"] == tools
    assert answer["status"] == "completed"


async def test_heartbeats_while_the_prompt_is_read() -> None:
    was_seen = asyncio.Event()

    async def frames() -> AsyncGenerator[Event]:
        yield progress(1, 3)
        await was_seen.wait()
        yield delta("x")
        yield finished()

    answer = ResponseAnswer(GenerateRequest(id="resp_1", model="m", reply_to="a"), parse_response(BODY).echo)
    data = b""
    async with aclosing(sse.EventReader(frames())) as reader:
        async for block in sse.stream_answer(reader, answer, 5.0, "resp_1", sse.Beats(prefill_s=0.01, decode_s=60)):
            data += block
            if data.count(b"event: response.in_progress") == 4:
                was_seen.set()
    kinds = [event["type"] for event in events_of(data)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.index("response.output_item.added") == kinds.count("response.in_progress") + 1 >= 5
    assert b": prefill 1/3" in data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ServerBusy("The server is busy.", 12.3), 503, "server_busy"),
        (RequestFailed(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "4096 of 2048", "messages"), 400, "context_length_exceeded"),
    ],
)
async def test_what_ends_a_request_before_its_head_is_a_status(
    client: Client, jobs: FakeJobs, failure: Exception, status: int, code: str, stream: bool
) -> None:
    jobs.waiting = [failure]
    error = await is_error(await client.post(PATH, json=BODY | {"stream": stream}), status, code)
    assert error["param"] == ("input" if status == 400 else None)


async def test_failure_while_running_without_stream_is_a_status(client: Client, jobs: FakeJobs) -> None:
    jobs.running = [delta("x"), RequestFailed(ErrorCode.ENGINE_LOST, "The engine died.")]
    await is_error(await client.post(PATH, json=BODY), 500, "worker_lost")


async def test_failure_while_streaming_is_two_events(client: Client, jobs: FakeJobs) -> None:
    jobs.running = [delta("x"), RequestFailed(ErrorCode.ENGINE_LOST, "The engine died.")]
    *_, failed, error = events_of(await read(await client.post(PATH, json=BODY | {"stream": True})))
    assert failed["type"] == "response.failed"
    assert (error["type"], error["error"]["code"]) == ("error", "worker_lost")


async def test_model_of_the_other_kind_and_unknown_model(client: Client, jobs: FakeJobs) -> None:
    assert (await is_error(await client.post(PATH, json=BODY | {"model": EMBED}), 400))["param"] == "model"
    await is_error(await client.post(PATH, json=BODY | {"model": "none"}), 404, "model_not_found")
    jobs.refusal = ModelLoading("The model is downloading (42%).", 90)
    await is_error(await client.post(PATH, json=BODY), 503, "model_loading")
    assert not jobs.submitted


async def test_bad_field_is_a_status(client: Client, jobs: FakeJobs) -> None:
    for stream in (False, True):
        response = await client.post(PATH, json=BODY | {"store": True, "stream": stream})
        assert (await is_error(response, 400, "unsupported_value"))["param"] == "store"
    assert not jobs.submitted


@pytest.mark.parametrize("model", [CHAT, None])
async def test_input_tokens_are_counted_beside_the_queue(client: Client, jobs: FakeJobs, model: str | None) -> None:
    jobs.reply = {"tokens": 17}
    body = {"model": model, "input": "hi", "instructions": "be"}
    answer = await (await client.post(PATH + "/input_tokens", json=body)).get_json()
    assert answer == {"object": "response.input_tokens", "input_tokens": 17}
    [query] = jobs.queries
    assert query.op == "count"
    assert query.request is not None
    assert query.request.model == CHAT
    assert query.request.messages == [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert not jobs.submitted


async def test_what_cannot_be_counted_is_named(client: Client, jobs: FakeJobs) -> None:
    assert (await is_error(await client.post(PATH + "/input_tokens", json={"model": CHAT}), 400))["param"] == "input"
    jobs.reply = RequestFailed(ErrorCode.INVALID_REQUEST, "The template refuses it.", "messages")
    assert (await is_error(await client.post(PATH + "/input_tokens", json=BODY), 400))["param"] == "input"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", "/responses/resp_1"),
        ("delete", "/responses/resp_1"),
        ("get", "/responses/resp_1/input_items"),
        ("post", "/responses/resp_1/cancel"),
    ],
)
@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_no_response_is_kept(client: Client, prefix: str, method: str, path: str) -> None:
    error = await is_error(await getattr(client, method)(prefix + path), 404, "response_not_found")
    assert "resp_1" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("get", "/v1/responses", 405), ("post", "/v1/responses/chat/completions", 404), ("post", "/v1/responses/x", 405)],
)
async def test_other_paths_are_not_taken_for_it(client: Client, method: str, path: str, status: int) -> None:
    await is_error(await getattr(client, method)(path), status)


async def test_needs_the_key(locked: Client) -> None:
    await is_error(await locked.post(PATH, json=BODY), 401, "invalid_api_key")
