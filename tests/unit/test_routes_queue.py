"""GET /v1/queue over HTTP, with an in-memory queue; and the deadline that a body names."""

import time
from typing import Any

import msgspec
import pytest

from api.app import create_app
from api.estimate import Estimate, Speed
from api.job_types import (
    GroupReport,
    LaneReport,
    QueueReport,
    QueueUnavailable,
    RequestFailed,
    RequestReport,
    ServerBusy,
)
from tasks.contracts import ErrorCode, Rates
from tests.unit.fake_jobs import CHAT, FakeJobs
from tests.unit.routes_support import MESSAGES, POSTS, is_error, read, settings

RATES = Rates(chats=9, prefill_tokens_per_s=812.3456, decode_tokens_per_s=50, chars_per_token=4, lengths=[20] * 9)
LANES = {"interactive": LaneReport(2, 1, Estimate(4.56789, True, 3)), "batch": LaneReport(0, 0, Estimate(9.0, True, 3))}
REPORT = QueueReport(
    [GroupReport(["chat/model"], 1, 1, LANES, Speed([RATES], 1024, 2048))],
    [
        RequestReport("chatcmpl-1", "interactive", 0, 1_700_000_000.0, 0.0, True),
        RequestReport("chatcmpl-2", "interactive", 2, 1_700_000_004.5, 4.5, True),
    ],
    0.1234,
    50,
)


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


def client(jobs: FakeJobs, **values: Any) -> Any:
    return create_app(settings(**values), jobs).test_client()


@pytest.mark.parametrize("path", ["/v1/queue", "/queue", "/v1/queue/"])
async def test_the_queue_as_json(jobs: FakeJobs, path: str) -> None:
    jobs.queue_report = REPORT
    response = await client(jobs).get(path)
    assert response.status_code == 200
    assert msgspec.json.decode(await read(response)) == {
        "object": "queue",
        "groups": [
            {
                "models": ["chat/model"],
                "workers": 1,
                "slots": 1,
                "lanes": {
                    "interactive": {
                        "waiting": 2,
                        "running": 1,
                        "estimate": {"wait_s": 4.568, "position": 3, "is_measured": True},
                    },
                    "batch": {
                        "waiting": 0,
                        "running": 0,
                        "estimate": {"wait_s": 9.0, "position": 3, "is_measured": True},
                    },
                },
                "rates": {
                    "prefill_tokens_per_s": 812.346,
                    "decode_tokens_per_s": 50.0,
                    "overhead_s": 0.0,
                    "chars_per_token": 4.0,
                    "completion_tokens": 20.0,
                    "embedding_tokens_per_s": None,
                },
            }
        ],
        "requests": [
            {
                "id": "chatcmpl-1",
                "state": "running",
                "lane": "interactive",
                "position": 0,
                "starts_at": 1_700_000_000.0,
                "wait_s": 0.0,
                "is_measured": True,
            },
            {
                "id": "chatcmpl-2",
                "state": "waiting",
                "lane": "interactive",
                "position": 2,
                "starts_at": 1_700_000_004.5,
                "wait_s": 4.5,
                "is_measured": True,
            },
        ],
        "estimate_error": {"median": 0.123, "samples": 50},
    }


async def test_it_is_asked_for_the_ids_and_the_caller(jobs: FakeJobs) -> None:
    app = client(jobs, api_key="ann:key-a,bob:key-b")
    for key, query in (("key-a", "?id=x&id=y"), ("key-b", "")):
        await app.get(f"/v1/queue{query}", headers={"Authorization": f"Bearer {key}"})
    assert [(caller.name, ids) for caller, ids in jobs.asked] == [("ann", ["x", "y"]), ("bob", [])]


async def test_it_needs_the_key(jobs: FakeJobs) -> None:
    await is_error(await client(jobs, api_key="key").get("/v1/queue"), 401, "invalid_api_key")


async def test_without_redis_it_is_unavailable(jobs: FakeJobs) -> None:
    jobs.queue_report = QueueUnavailable("away", 2.0)
    response = await client(jobs).get("/v1/queue")
    await is_error(response, 503, "queue_unavailable")
    assert response.headers["Retry-After"] == "2"


# -- waits and deadlines --------------------------------------------------------------------------------


WITH_RESPONSES = [*POSTS, ("/v1/responses", {"model": CHAT, "input": "hi"})]


@pytest.mark.parametrize(("path", "body"), WITH_RESPONSES)
async def test_a_refusal_says_how_long_the_request_had_waited(jobs: FakeJobs, path: str, body: dict[str, Any]) -> None:
    refusal = ServerBusy("busy", 7.2)
    refusal.queue_ms = 2000.4
    jobs.waiting, jobs.embed_steps = [refusal], [refusal]
    response = await client(jobs).post(path, json=body)
    await is_error(response, 503, "server_busy")
    assert response.headers["x-queue-wait-ms"] == "2000"
    assert response.headers["Retry-After"] == "8"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_so_does_a_request_that_failed_when_it_ran(jobs: FakeJobs, path: str) -> None:
    failure = RequestFailed(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "'messages' is too long", "messages")
    failure.queue_ms = 321.0
    jobs.waiting = [failure]
    response = await client(jobs).post(path, json=dict(WITH_RESPONSES)[path])
    await is_error(response, 400, "context_length_exceeded")
    assert response.headers["x-queue-wait-ms"] == "321"


async def test_a_request_that_was_never_queued_has_no_wait(jobs: FakeJobs) -> None:
    jobs.refusal = QueueUnavailable("away", 2.0)
    response = await client(jobs).post("/v1/chat/completions", json={"model": CHAT, "messages": MESSAGES})
    assert response.status_code == 503
    assert "x-queue-wait-ms" not in response.headers


@pytest.mark.parametrize(("path", "body"), WITH_RESPONSES)
async def test_a_deadline_travels_as_a_time(jobs: FakeJobs, path: str, body: dict[str, Any]) -> None:
    before_ms = int(time.time() * 1000)
    response = await client(jobs).post(path, json=body | {"deadline_ms": 5000})
    assert response.status_code == 200
    (deadline_ms,) = jobs.deadlines_ms or [request.deadline_ms for request in jobs.submitted]
    assert before_ms + 5000 <= deadline_ms <= int(time.time() * 1000) + 5000


@pytest.mark.parametrize(("path", "body"), WITH_RESPONSES)
async def test_no_deadline_is_none(jobs: FakeJobs, path: str, body: dict[str, Any]) -> None:
    await client(jobs).post(path, json=body | {"deadline_ms": None})
    assert (jobs.deadlines_ms or [request.deadline_ms for request in jobs.submitted]) == [0]


@pytest.mark.parametrize(("path", "body"), WITH_RESPONSES)
@pytest.mark.parametrize("value", [0, -1, 1.5, "5000", True, [1], 2**40])
async def test_a_wrong_deadline_is_named(jobs: FakeJobs, path: str, body: dict[str, Any], value: Any) -> None:
    error = await is_error(await client(jobs).post(path, json=body | {"deadline_ms": value}), 400)
    assert error["param"] == "deadline_ms"
    assert jobs.submitted == [] and jobs.embedded == []
