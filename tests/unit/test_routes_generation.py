"""/v1/chat/completions and /v1/completions."""

from typing import Any

import pytest
from quart.typing import TestClientProtocol as Client

from api.job_types import ModelLoading, QueueUnavailable, RequestFailed, ServerBusy
from tasks.contracts import ErrorCode, FinishReason, Lane
from tests.unit.fake_jobs import FakeJobs, delta, finished, progress
from tests.unit.routes_support import POSTS, chunks, is_error, read


async def test_chat(client: Client, jobs: FakeJobs) -> None:
    path, body = POSTS[0]
    response = await client.post(path, json=body | {"temperature": 0.1, "stop": "x", "max_tokens": 5})
    answer = await response.get_json()
    [request] = jobs.submitted
    assert answer["choices"][0]["message"]["content"] == "Hello world"
    assert answer["id"] == request.id == response.headers["x-request-id"]
    assert answer["created"] == request.created_ms // 1000 > 0
    assert request.id.startswith("chatcmpl-")
    assert (request.reply_to, request.lane, request.attempt) == ("api-1", Lane.INTERACTIVE, 1)
    assert (request.sampling.temperature, request.stop, request.max_tokens) == (0.1, ["x"], 5)
    assert response.headers["x-queue-wait-ms"] == "12"
    assert not jobs.cancelled


@pytest.mark.parametrize("include_usage", [False, True])
async def test_chat_stream(client: Client, jobs: FakeJobs, include_usage: bool) -> None:
    path, body = POSTS[0]
    options = {"stream": True, "stream_options": {"include_usage": include_usage}}
    response = await client.post(path, json=body | options)
    data = await read(response)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert "no-cache" in response.headers["Cache-Control"]
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert data.endswith(b"data: [DONE]\n\n")
    got = chunks(data)
    assert {c["id"] for c in got} == {jobs.submitted[0].id} == {response.headers["x-request-id"]}
    assert "".join(choice["delta"].get("content", "") for c in got for choice in c["choices"]) == "Hello world"
    assert bool(got[-1].get("usage")) is include_usage
    assert not jobs.cancelled


@pytest.mark.parametrize("echo", [False, True])
async def test_completion_and_its_stream_are_the_same_text(client: Client, jobs: FakeJobs, echo: bool) -> None:
    path, body = POSTS[1]
    whole = await (await client.post(path, json=body | {"echo": echo})).get_json()
    streamed = chunks(await read(await client.post(path, json=body | {"echo": echo, "stream": True})))
    assert whole["choices"][0]["text"] == ("hi" if echo else "") + "Hello world"
    assert "".join(c["choices"][0]["text"] for c in streamed) == whole["choices"][0]["text"]
    assert streamed[0]["choices"][0]["text"] == ("hi" if echo else "Hello")
    assert [request.id.split("-")[0] for request in jobs.submitted] == ["cmpl", "cmpl"]


async def test_finish_reason_length(client: Client, jobs: FakeJobs) -> None:
    jobs.running = [progress(1, 2), delta("x"), finished(FinishReason.LENGTH)]
    answer = await (await client.post(POSTS[0][0], json=POSTS[0][1])).get_json()
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ServerBusy("The server is busy.", 12.3), 503, "server_busy"),
        (QueueUnavailable("The queue is away.", 2), 503, "queue_unavailable"),
        (RequestFailed(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "4096 of 2048"), 400, "context_length_exceeded"),
        (RequestFailed(ErrorCode.INVALID_REQUEST, "The template refuses it.", "messages"), 400, None),
        (RequestFailed(ErrorCode.WORKER_LOST, "The worker died."), 500, "worker_lost"),
        (ValueError("/secret"), 500, "internal_error"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("path", "body"), POSTS[:2])
async def test_what_ends_a_request_before_its_head_is_a_status(
    client: Client,
    jobs: FakeJobs,
    path: str,
    body: Any,
    failure: Exception,
    status: int,
    code: str | None,
    stream: bool,
) -> None:
    jobs.waiting = [failure]
    response = await client.post(path, json=body | {"stream": stream})
    error = await is_error(response, status, code)
    assert "secret" not in error["message"]
    assert response.headers["x-request-id"] == jobs.submitted[0].id
    if status == 503:
        assert response.headers["Retry-After"].isdigit()


async def test_failure_while_running_without_stream_is_a_status(client: Client, jobs: FakeJobs) -> None:
    jobs.running = [delta("x"), RequestFailed(ErrorCode.ENGINE_LOST, "The engine died.")]
    await is_error(await client.post(POSTS[0][0], json=POSTS[0][1]), 500, "worker_lost")


async def test_failure_while_streaming_is_the_last_frame(client: Client, jobs: FakeJobs) -> None:
    jobs.running = [delta("x"), RequestFailed(ErrorCode.ENGINE_LOST, "The engine died.")]
    data = await read(await client.post(POSTS[0][0], json=POSTS[0][1] | {"stream": True}))
    assert chunks(data)[-1]["error"]["code"] == "worker_lost"
    assert b"[DONE]" not in data


@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_no_worker_ready_is_said_at_once(client: Client, jobs: FakeJobs, path: str, body: Any) -> None:
    jobs.refusal = ModelLoading("The model is downloading (42%).", 90)
    response = await client.post(path, json=body)
    await is_error(response, 503, "model_loading")
    assert (response.headers["Retry-After"], response.headers["x-should-retry"]) == ("60", "false")
    assert not jobs.submitted


@pytest.mark.parametrize(
    ("header", "patience_s"),
    [("600", 600.0), ("2.5", 2.5), *[(bad, None) for bad in (None, "", "x", "-1", "nan", "inf", "0")]],
)
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_how_long_the_client_waits(
    client: Client, jobs: FakeJobs, path: str, body: Any, header: str | None, patience_s: float | None
) -> None:
    await client.post(path, json=body, headers={"x-stainless-read-timeout": header} if header is not None else {})
    assert jobs.patience_s == [patience_s]
