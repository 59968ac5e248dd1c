"""Paths, methods, the key, CORS, ids and logs, on every route."""

import asyncio
import logging
import re
from typing import Any

import pytest
from quart.typing import TestClientProtocol as Client

from api.app import create_app
from tests.unit.fake_jobs import CHAT, EMBED, FakeJobs
from tests.unit.routes_support import POSTS, is_error, settings

ORIGIN = {"Origin": "http://app.example"}
GETS = ["/v1/models", f"/v1/models/{CHAT}", f"/v1/models/{EMBED}", "/health"]


# -- paths and methods ---------------------------------------------------------------------------


@pytest.mark.parametrize("change", [str, lambda p: p.removeprefix("/v1"), lambda p: p + "/", lambda p: "/" + p])
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_prefix_and_slashes_do_not_matter(client: Client, path: str, body: Any, change: Any) -> None:
    response = await client.post(change(path), json=body)
    assert response.status_code == 200
    assert response.content_type == "application/json"


@pytest.mark.parametrize("path", [*GETS, "/models", "/v1/health", "/v1/models/", f"/models/{CHAT}/", "/health/"])
async def test_get_and_head(client: Client, path: str) -> None:
    assert (await client.get(path)).status_code == 200
    assert (await client.head(path)).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/nope", "/v1/v1/chat/completions", "/v1/responses/chat/completions", "/api/chat", "/%00", "/é"],
)
@pytest.mark.parametrize("method", ["get", "post", "delete"])
async def test_unknown_url(client: Client, jobs: FakeJobs, path: str, method: str) -> None:
    await is_error(await getattr(client, method)(path), 404, "unknown_url")
    assert not jobs.submitted


@pytest.mark.parametrize(
    ("method", "path"),
    [("get", "/v1/chat/completions"), ("head", "/v1/completions"), ("put", "/v1/embeddings"), ("post", "/v1/models")],
)
async def test_wrong_method_lists_the_right_ones(client: Client, method: str, path: str) -> None:
    response = await getattr(client, method)(path)
    assert ("GET" if path == "/v1/models" else "POST") in response.headers["Allow"]
    if method != "head":
        await is_error(response, 405, "method_not_allowed")


# -- key and CORS --------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, "Bearer ", "key", "Basic eDp5", "Bearer wrong"])
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_without_the_key_nothing_is_queued(
    locked: Client, jobs: FakeJobs, path: str, body: Any, header: str | None
) -> None:
    headers = ORIGIN | ({"Authorization": header} if header is not None else {})
    response = await locked.post(path, json=body, headers=headers)
    await is_error(response, 401, "invalid_api_key")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert not jobs.submitted
    assert not jobs.embedded


async def test_with_the_key_all_is_served(locked: Client) -> None:
    for path, body in POSTS:
        assert (await locked.post(path, json=body, headers={"Authorization": "bearer key"})).status_code == 200
    assert (await locked.get("/v1/models", headers={"Authorization": "Bearer key"})).status_code == 200
    assert (await locked.get("/health")).status_code == 200
    await is_error(await locked.get("/v1/models"), 401)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nope"])
async def test_preflight_needs_no_key(locked: Client, path: str) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    response = await locked.options(path, headers=ORIGIN | asked)
    assert response.status_code == 204
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert "POST" in response.headers["Access-Control-Allow-Methods"]
    assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"


@pytest.mark.parametrize(
    ("origin", "allowed"), [("http://app.example", "http://app.example"), ("http://evil.example", None), (None, None)]
)
async def test_listed_origins_only(jobs: FakeJobs, origin: str | None, allowed: str | None) -> None:
    client = create_app(settings(cors_origins=["http://app.example"]), jobs).test_client()
    for path in ("/v1/models", "/nope"):
        response = await client.get(path, headers={"Origin": origin} if origin else {})
        assert response.headers.get("Access-Control-Allow-Origin") == allowed
        assert response.headers["Vary"] == "Origin"


async def test_what_a_page_may_read(client: Client) -> None:
    exposed = (await client.get("/v1/models", headers=ORIGIN)).headers["Access-Control-Expose-Headers"]
    for header in ("x-request-id", "retry-after", "x-truncated-inputs", "x-queue-wait-ms"):
        assert header in exposed


# -- ids and logs --------------------------------------------------------------------------------


async def test_ids_differ(client: Client) -> None:
    ids = {(await client.get("/v1/models")).headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20
    assert all(re.fullmatch(r"req-[0-9a-f]{24}", request_id) for request_id in ids)


async def test_access_log_has_fields_and_no_text(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="api"):
        body = {"model": CHAT, "messages": [{"role": "user", "content": "very private"}]}
        response = await client.post("/v1/chat/completions?x=private", json=body)
        await response.get_data()
    [record] = [record for record in caplog.records if record.name == "api.access"]
    fields = record.__dict__
    assert (fields["status"], fields["method"], fields["route"]) == (200, "POST", "/v1/chat/completions")
    assert fields["request_id"] == response.headers["x-request-id"]
    assert fields["ms"] >= 0
    assert all("private" not in str(record.__dict__) for record in caplog.records)


async def test_fault_of_the_server_is_logged_with_its_request(
    client: Client, jobs: FakeJobs, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.waiting = [ValueError("inside")]
    response = await client.post(POSTS[0][0], json=POSTS[0][1])
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.__dict__["request_id"] == response.headers["x-request-id"]
    assert record.exc_info is not None


async def test_requests_do_not_mix_their_ids(client: Client, jobs: FakeJobs) -> None:
    responses = await asyncio.gather(*(client.post(path, json=body) for path, body in POSTS[:2] * 10))
    answers = [await response.get_json() for response in responses]
    assert {answer["id"] for answer in answers} == {request.id for request in jobs.submitted}
    assert [response.headers["x-request-id"] for response in responses] == [answer["id"] for answer in answers]
