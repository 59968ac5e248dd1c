"""Which idempotency keys are taken, and whose they are."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import SecretStr

from tests.integration.idempotent_apps import (
    BODY,
    CHATS,
    OTHER,
    STREAM,
    api_on,
    until,
)
from tests.stack import Stack
from tests.unit.fake_jobs import HELLO

pytestmark = pytest.mark.usefixtures("empty_broker")


@pytest.mark.parametrize(
    ("body", "path"), [(OTHER, CHATS), (STREAM, CHATS), (BODY, "/v1/completions"), (b'{"model"', CHATS)]
)
@pytest.mark.parametrize("is_running", [False, True])
async def test_the_key_of_another_request_is_a_409(
    broker: Stack, key: str, body: Any, path: str, is_running: bool
) -> None:
    end = asyncio.Event()
    async with api_on(broker, end, *HELLO) as one, api_on(broker) as two:
        first = one.post(BODY, key)
        await until(one.jobs.has_started.is_set, "it runs")
        if not is_running:
            end.set()
            await first.whole()
        for api in (one, two):
            refused = await api.post(body, key, path).whole()
            assert refused.status == 409
            assert refused.code == "idempotency_key_reused"
            assert refused.headers["x-should-retry"] == "false"
        assert (one.n_runs, two.n_runs) == (1, 0)
        end.set()
        assert (await first.whole()).status == 200


async def test_with_no_time_to_keep_answers_the_header_is_ignored(broker: Stack, key: str) -> None:
    async with api_on(broker, idempotency_ttl_s=0.0) as api:
        for name in (key, key, "", "x" * 300):
            answer = await api.post(BODY, name).whole()
            assert answer.status == 200
            assert not answer.is_replay
        assert api.n_runs == 4


async def test_keys_are_those_of_an_api_key(broker: Stack, key: str) -> None:
    async with api_on(broker, api_key=SecretStr("alice:key-a,bob:key-b")) as api:
        alice = await api.post(BODY, key, Authorization="Bearer key-a").whole()
        bob = await api.post(OTHER, key, Authorization="Bearer key-b").whole()
        assert (alice.status, bob.status) == (200, 200)
        assert not bob.is_replay
        assert (await api.post(BODY, key, Authorization="Bearer key-a").whole()).is_replay
        stranger = await api.post(BODY, key, Authorization="Bearer wrong").whole()
        assert stranger.status == 401


@pytest.mark.parametrize("bad", ["", " ", "x" * 256, "a\tb", "schlüssel", "a\x7fb"])
async def test_a_bad_key_is_a_400_that_names_the_header(broker: Stack, bad: str) -> None:
    async with api_on(broker) as api:
        answer = await api.post(BODY, bad.strip(" ")).whole()
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["param"] == "Idempotency-Key"
        assert api.n_runs == 0


@pytest.mark.parametrize("good", ["x", "x" * 255, "a b", "stainless-python-retry-1f"])
async def test_a_key_of_up_to_255_characters_is_taken(broker: Stack, good: str) -> None:
    async with api_on(broker) as api:
        assert (await api.post(BODY, good).whole()).status == 200
        assert (await api.post(BODY, good).whole()).is_replay


async def test_without_redis_a_request_with_a_key_is_refused_at_once(broker: Stack, key: str) -> None:
    async with api_on(broker, redis_url="redis://127.0.0.1:1/0") as api:
        answer = await api.post(BODY, key).whole(2.0)
        assert answer.status == 503
        assert answer.code == "queue_unavailable"
        assert answer.headers["retry-after"]
        assert api.n_runs == 0
        assert (await api.post(BODY, key, "/v1/tokenize").whole()).status != 503
