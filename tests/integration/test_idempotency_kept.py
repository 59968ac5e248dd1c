"""What is kept of the answers to requests with an idempotency key: for how long, how much, and after a loss."""

import asyncio
from typing import Any

import pytest

from api import idempotency_store, idempotent_run
from tests.integration.idempotent_apps import (
    BODY,
    OTHER,
    STREAM,
    api_on,
    idem_keys,
    runs_of,
    same_answer,
    until,
)
from tests.stack import Stack
from tests.unit.fake_jobs import HELLO, delta, finished

pytestmark = pytest.mark.usefixtures("empty_broker")


async def test_an_answer_is_forgotten_after_its_time(broker: Stack, key: str) -> None:
    async with api_on(broker, idempotency_ttl_s=1.0) as api:
        await api.post(BODY, key).whole()
        assert (await api.post(BODY, key).whole()).is_replay
        await until(lambda: not idem_keys(broker, "key:*"), "it lapses", 3.0)
        again = await api.post(OTHER, key).whole()
        assert again.status == 200
        assert not again.is_replay


async def test_every_redis_key_lapses_and_none_has_the_prompt(broker: Stack, key: str) -> None:
    secret = f"secret-{key}"
    body = STREAM | {"messages": [{"role": "user", "content": secret}]}
    end = asyncio.Event()
    async with api_on(broker, delta("one "), end, finished()) as one, api_on(broker) as two:
        first = await one.post(body, key).text("one ")
        second = await two.post(body, key).text("one ")
        for is_over in (False, True):
            if is_over:
                end.set()
                await asyncio.gather(first.whole(), second.whole())
            with broker.redis() as client:
                names = idem_keys(broker)
                assert names
                for name in names:
                    assert client.pttl(name) > 0, name
                    assert secret.encode() not in (client.dump(name) or b"")
                    assert key.encode() not in name


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_an_answer_too_large_is_not_kept(
    broker: Stack, key: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotent_run, "MAX_ANSWER_BYTES", 10_000)
    async with api_on(broker, delta("x" * 20_000), *HELLO) as one, api_on(broker) as two:
        first = await one.post(body, key).whole()
        assert first.status == 200
        assert len(first.body) > 20_000
        await until(lambda: not idem_keys(broker, "data:*") and not runs_of(one), "nothing is kept")
        again = await two.post(body, key).whole()
        assert again.status == 200
        assert not again.is_replay


async def test_the_oldest_answers_make_room(broker: Stack, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_store, "MAX_KEPT_BYTES", 50_000)
    async with api_on(broker, delta("x" * 20_000), *HELLO) as api:
        for index in range(4):
            await api.post(BODY, f"{key}{index}").whole()
            await until(lambda: not runs_of(api), "it is recorded")
        with broker.redis() as client:
            kept = int(client.get("lis:idem:kept_bytes") or 0)
            assert client.zcard("lis:idem:kept") == 2
        assert 40_000 < kept <= 50_000
        replays = [(await api.post(BODY, f"{key}{index}").whole()).is_replay for index in (3, 2, 1, 0)]
        assert replays == [True, True, False, False]


async def test_a_redis_that_lost_all_gets_the_answer_again_from_its_start(broker: Stack, key: str) -> None:
    end = asyncio.Event()
    async with api_on(broker, delta("one "), end, delta("two"), finished()) as one, api_on(broker) as two:
        first = await one.post(STREAM, key).text("one ")
        await until(lambda: idem_keys(broker, "data:*"), "it is being recorded")
        with broker.redis() as client:
            client.flushall()
        await until(lambda: idem_keys(broker, "data:*"), "it is recorded again")
        end.set()
        await first.whole()
        await until(lambda: not runs_of(one), "it is kept")
        same_answer(first, await two.post(STREAM, key).whole())
        assert (one.n_runs, two.n_runs) == (1, 0)


async def test_a_key_taken_by_another_run_leaves_the_first_to_its_own_readers(broker: Stack, key: str) -> None:
    end = asyncio.Event()
    async with api_on(broker, delta("one "), end, delta("two"), finished()) as one, api_on(broker) as two:
        first = await one.post(STREAM, key).text("one ")
        other = await one.post(STREAM, key).text("one ")
        with broker.redis() as client:
            (name,) = idem_keys(broker, "key:*")
            client.set(name, "another " + client.get(name).decode().split()[1], px=60_000)
        await until(lambda: all(run._is_lost for run in runs_of(one)), "it is found out", 5.0)
        end.set()
        for each in (first, other):
            assert (await each.whole()).body.endswith(b"data: [DONE]\n\n")
        await until(lambda: not runs_of(one), "it is over")
        assert two.n_runs == 0


async def test_a_large_answer_is_replayed_byte_for_byte(broker: Stack, key: str) -> None:
    text = "".join(chr(0x4E00 + index % 5000) for index in range(1_000_000))
    async with api_on(broker, delta(text), *HELLO) as one, api_on(broker) as two:
        first = await one.post(STREAM, key).whole()
        again = await two.post(STREAM, key).whole()
        assert len(first.body) > 2 * idempotency_store.READ_BYTES
        same_answer(first, again)
