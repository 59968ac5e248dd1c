"""/v1/chat/completions and /v1/completions."""

from typing import Any

import pytest
from quart.typing import TestClientProtocol as Client

from api.app import create_app
from api.job_types import ModelLoading, QueueUnavailable, RequestFailed, ServerBusy
from tasks.contracts import ErrorCode, FinishReason, Lane
from tests.unit.fake_jobs import FakeJobs, call, delta, ended, finished, progress, reasoning, scored
from tests.unit.routes_support import POSTS, chunks, is_error, read, settings


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


async def test_several_choices_streamed_or_not(client: Client, jobs: FakeJobs) -> None:
    """PAR-01"""
    jobs.running = [delta("a"), ended(0), delta("b", choice=1), ended(1, FinishReason.LENGTH), delta("c", choice=2)]
    jobs.running.append(finished())
    path, body = POSTS[0]
    whole = await (await client.post(path, json=body | {"n": 3})).get_json()
    assert [request.n for request in jobs.submitted] == [3]
    got = [(choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in whole["choices"]]
    assert got == [(0, "a", "stop"), (1, "b", "length"), (2, "c", "stop")]
    streamed = chunks(await read(await client.post(path, json=body | {"n": 3, "stream": True})))
    choices = [choice for c in streamed for choice in c["choices"]]
    for index, text, reason in got:
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == text
        assert [choice["delta"]["role"] for choice in own if "role" in choice["delta"]] == ["assistant"]
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == [reason]


async def test_calls_streamed_or_not(client: Client, jobs: FakeJobs) -> None:
    """TOOL-06"""
    jobs.running = [
        reasoning("Hm."),
        call(0, "weather", '{"city": '),
        call(0, "", '"Oslo"}'),
        call(1, "time", "{}"),
        finished(FinishReason.TOOL_CALLS),
    ]
    path, body = POSTS[0]
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]
    body |= {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    [choice] = (await (await client.post(path, json=body)).get_json())["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"], message["reasoning_content"]) == ("tool_calls", None, "Hm.")
    streamed = chunks(await read(await client.post(path, json=body | {"stream": True})))
    deltas = [choice["delta"] for c in streamed for choice in c["choices"]]
    assert deltas[0] == {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for said in (item for told in deltas for item in told.get("tool_calls", [])):
        if "id" in said:
            assert said["index"] not in calls
            calls[said["index"]] = {key: said[key] for key in ("id", "type")} | {"function": dict(said["function"])}
        else:
            assert list(said["function"]) == ["arguments"]
            calls[said["index"]]["function"]["arguments"] += said["function"]["arguments"]
    assert [calls[index] for index in sorted(calls)] == message["tool_calls"]
    assert streamed[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("top", [None, 2])
async def test_logprobs_streamed_or_not(client: Client, jobs: FakeJobs, top: int | None) -> None:
    """PAR-06"""
    jobs.running = [scored((" a", -0.5), (" b", -1.5)), scored((" c", float("-inf"))), finished()]
    path, body = POSTS[0]
    body |= {"logprobs": True, "top_logprobs": top}
    [choice] = (await (await client.post(path, json=body)).get_json())["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == choice["message"]["content"] == " a b c"
    assert [token["logprob"] for token in content] == [-0.5, -1.5, -9999.0]
    assert [bytes(token["bytes"]).decode() for token in content] == [" a", " b", " c"]
    streamed = chunks(await read(await client.post(path, json=body | {"stream": True})))
    blocks = [choice["logprobs"] for c in streamed for choice in c["choices"] if choice["logprobs"]]
    assert [token for block in blocks for token in block["content"]] == content
    assert [request.logprobs for request in jobs.submitted] == [top or 0, top or 0]


async def test_best_of_counts_all_and_answers_with_the_best(client: Client, jobs: FakeJobs) -> None:
    jobs.running = [scored((" a", -2.0)), ended(0), scored((" b", -1.0), choice=1), finished()]
    path, body = POSTS[1]
    answer = await (await client.post(path, json=body | {"best_of": 2})).get_json()
    assert [(choice["index"], choice["text"], choice["logprobs"]) for choice in answer["choices"]] == [(0, " b", None)]
    assert answer["usage"]["completion_tokens"] == 2
    assert (jobs.submitted[0].n, jobs.submitted[0].logprobs) == (2, 0)


@pytest.mark.parametrize(("path", "body"), POSTS[:2])
async def test_limit_of_choices_is_a_setting(jobs: FakeJobs, path: str, body: Any) -> None:
    client = create_app(settings(max_n=2), jobs).test_client()
    assert (await client.post(path, json=body | {"n": 2})).status_code == 200
    error = await is_error(await client.post(path, json=body | {"n": 3}), 400)
    assert (error["param"], "at most 2" in error["message"]) == ("n", True)


@pytest.mark.parametrize(("path", "body"), POSTS[:2])
@pytest.mark.parametrize("filler", ["", "word " * 100_000])
async def test_schema_that_cannot_be_enforced_is_said_with_its_keyword(
    client: Client, jobs: FakeJobs, path: str, body: Any, filler: str
) -> None:
    """PAR-09"""
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    error = await is_error(await client.post(path, json=body | {"response_format": wanted, "user": filler}), 400)
    assert error["param"] == "response_format.json_schema.schema"
    assert "pattern" in error["message"]
    assert not jobs.submitted


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
