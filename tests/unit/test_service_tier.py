"""`service_tier`: which lane it asks for, and what the answer says."""

import json
from typing import Any

import pytest
from quart.typing import TestClientProtocol as Client

from tasks.contracts import Lane
from tests.unit.fake_jobs import CHAT, FakeJobs
from tests.unit.routes_support import MESSAGES, POSTS, chunks, is_error, read

PATHS = [*POSTS, ("/v1/responses", {"model": CHAT, "input": "hi"})]


def lane(jobs: FakeJobs) -> Lane:
    return jobs.submitted[-1].lane if jobs.submitted else jobs.embedded_in[-1][0]


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize(
    ("tier", "headers", "expected"),
    [
        (None, {}, Lane.INTERACTIVE),
        ("auto", {}, Lane.INTERACTIVE),
        ("default", {}, Lane.INTERACTIVE),
        ("priority", {}, Lane.INTERACTIVE),
        ("flex", {}, Lane.BATCH),
        (None, {"service-tier": "flex"}, Lane.BATCH),
        (None, {"X-Service-Tier": " Flex "}, Lane.BATCH),
        (None, {"service-tier": ""}, Lane.INTERACTIVE),
        ("default", {"service-tier": "flex"}, Lane.INTERACTIVE),
        ("flex", {"service-tier": "default"}, Lane.BATCH),
    ],
)
async def test_flex_asks_for_the_batch_lane(
    client: Client, jobs: FakeJobs, path: str, body: Any, tier: str | None, headers: dict[str, str], expected: Lane
) -> None:
    response = await client.post(path, json=body | {"service_tier": tier}, headers=headers)
    assert response.status_code == 200
    assert lane(jobs) is expected


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize(("tier", "header"), [("scale", None), ("", None), ("FLEX", None), (5, None), (None, "cheap")])
async def test_another_tier_is_refused(
    client: Client, jobs: FakeJobs, path: str, body: Any, tier: Any, header: str | None
) -> None:
    headers = {"service-tier": header} if header else {}
    error = await is_error(await client.post(path, json=body | {"service_tier": tier}, headers=headers), 400)
    assert error["param"] == "service_tier"
    assert not jobs.submitted
    assert not jobs.embedded


@pytest.mark.parametrize(
    ("tier", "said"), [(None, "default"), ("auto", "default"), ("priority", "default"), ("flex", "flex")]
)
@pytest.mark.parametrize("include_usage", [False, True])
async def test_the_answer_says_which_tier_served_it(
    client: Client, tier: str | None, said: str, include_usage: bool
) -> None:
    chat = {"model": CHAT, "messages": MESSAGES, "service_tier": tier}
    assert (await (await client.post("/v1/chat/completions", json=chat)).get_json())["service_tier"] == said
    options = {"stream": True, "stream_options": {"include_usage": include_usage}}
    streamed = chunks(await read(await client.post("/v1/chat/completions", json=chat | options)))
    assert [chunk.get("service_tier") for chunk in streamed][-1] == said
    response = {"model": CHAT, "input": "hi", "service_tier": tier}
    assert (await (await client.post("/v1/responses", json=response)).get_json())["service_tier"] == said
    lines = (await read(await client.post("/v1/responses", json=response | {"stream": True}))).decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {event["response"]["service_tier"] for event in events if "response" in event} == {said}
