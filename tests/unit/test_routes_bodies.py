"""Request bodies on every route."""

import gzip
import json
from typing import Any

import pytest
from quart.typing import TestClientProtocol as Client

from api.app import create_app
from tests.unit.fake_jobs import CHAT, FakeJobs
from tests.unit.routes_support import POSTS, is_error, settings


@pytest.mark.parametrize("content_type", [None, "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"])
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_content_types(client: Client, path: str, body: Any, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    assert (await client.post(path, data=json.dumps(body).encode(), headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Encoding": "br"}],
)
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_other_media_types(client: Client, path: str, body: Any, headers: dict[str, str]) -> None:
    response = await client.post(path, data=json.dumps(body).encode(), headers=headers)
    await is_error(response, 415, "unsupported_media_type")


@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_gzip_body(client: Client, path: str, body: Any) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = await client.post(path, data=gzip.compress(json.dumps(body).encode()), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b'{"a": "\xff"}', rb'{"a": "\ud83d"}'])
@pytest.mark.parametrize("path", [path for path, _ in POSTS])
async def test_what_is_no_json_object(client: Client, jobs: FakeJobs, path: str, data: bytes) -> None:
    error = await is_error(await client.post(path, data=data, headers={"Content-Type": "application/json"}), 400)
    assert error["param"] is None
    assert not jobs.submitted


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_body_over_the_limit_names_it(jobs: FakeJobs, path: str, body: Any, packed: bool) -> None:
    client = create_app(settings(max_body_bytes=2048), jobs).test_client()
    data = json.dumps(body | {"filler": "a" * 2048}).encode()
    headers = {"Content-Type": "application/json"}
    if packed:
        data, headers["Content-Encoding"] = gzip.compress(data), "gzip"
    error = await is_error(await client.post(path, data=data, headers=headers), 413, "request_too_large")
    assert "2048" in error["message"]
    assert not jobs.submitted


async def test_body_above_the_off_loop_size(client: Client, jobs: FakeJobs) -> None:
    text = "word " * 100_000
    body = {"model": CHAT, "messages": [{"role": "user", "content": text}]}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert jobs.submitted[0].messages == [{"role": "user", "content": text}]


async def test_bad_field_in_a_body_above_the_off_loop_size(client: Client) -> None:
    body = {"model": CHAT, "messages": [{"role": "user", "content": "word " * 100_000}], "temperature": 5}
    error = await is_error(await client.post("/v1/chat/completions", json=body), 400)
    assert error["param"] == "temperature"


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", 5), ("temperature", "hot"), ("top_p", 2), ("top_p", -0.5), ("n", 0), ("n", 9),
     ("max_tokens", "10"), ("max_tokens", 0), ("max_tokens", -1), ("stream", "yes"), ("presence_penalty", 9)],
)  # fmt: skip
@pytest.mark.parametrize(("path", "body"), POSTS[:2])
async def test_bad_field_is_named_and_not_queued(
    client: Client, jobs: FakeJobs, path: str, body: Any, field: str, value: Any
) -> None:
    error = await is_error(await client.post(path, json=body | {field: value}), 400)
    assert error["param"] == field
    assert not jobs.submitted
