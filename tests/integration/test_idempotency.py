"""Idempotency keys: the real app on a real Redis, with a queue that is scripted. Two apps are two API processes."""

import asyncio
import json
import secrets
from typing import Any

import pytest
from pydantic import SecretStr

from api import idempotency_store, idempotent_run
from api.job_types import RequestFailed, ServerBusy
from tasks.contracts import ErrorCode
from tests.integration.idempotent_apps import BODY, CHATS, STREAM, Api, api_on, until
from tests.stack import Stack
from tests.unit.fake_jobs import HELLO, delta, finished
from tests.unit.routes_support import POSTS

OTHER = BODY | {"max_tokens": 3}


@pytest.fixture(autouse=True)
def empty(broker: Stack) -> None:
    with broker.redis() as client:
        client.flushall()


@pytest.fixture
def key() -> str:
    return secrets.token_hex(8)


def same_answer(first: Any, second: Any) -> None:
    assert second.status == first.status
    assert second.body == first.body
    for name in ("content-type", "x-request-id", "x-queue-wait-ms"):
        assert second.headers.get(name) == first.headers.get(name)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_a_finished_answer_is_replayed_here_and_elsewhere(
    broker: Stack, key: str, path: str, body: dict[str, Any], is_stream: bool
) -> None:
    body = body | ({"stream": True} if is_stream and "embeddings" not in path else {})
    async with api_on(broker) as one, api_on(broker) as two:
        first = await one.post(body, key, path).whole()
        assert first.status == 200
        assert not first.is_replay
        for again in (one.post(body, key, path), two.post(body, key, path.removeprefix("/v1"))):
            await again.whole()
            same_answer(first, again)
            assert again.is_replay
        assert (one.n_runs, two.n_runs) == (1, 0)


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_the_first_answer_is_what_it_is_without_a_key(broker: Stack, key: str, body: dict[str, Any]) -> None:
    async with api_on(broker) as api:
        keyed = await api.post(body, key).whole()
        plain = await api.post(body, key, "/v1/chat/completions/").whole()
        same_answer(keyed, plain)
        assert set(keyed.headers) == set(plain.headers) - {"idempotent-replayed"}
        assert ("content-length" in keyed.headers) is (body is BODY)


@pytest.mark.parametrize("is_other_process", [False, True])
async def test_a_request_attached_in_mid_stream_gets_the_same_bytes(
    broker: Stack, key: str, is_other_process: bool
) -> None:
    more, end = asyncio.Event(), asyncio.Event()
    steps = (delta("one "), more, delta("two "), end, delta("three"), finished())
    async with api_on(broker, *steps) as one, api_on(broker) as two:
        first = await one.post(STREAM, key).text("one ")
        second = await (two if is_other_process else one).post(STREAM, key).text("one ")
        more.set()
        await asyncio.gather(first.text("two "), second.text("two "))
        assert not second.is_over
        end.set()
        await asyncio.gather(first.whole(), second.whole())
        same_answer(first, second)
        assert second.is_replay
        assert second.body.endswith(b"data: [DONE]\n\n")
        assert (one.n_runs, two.n_runs) == (1, 0)


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


async def test_ten_at_once_on_two_processes_run_once(broker: Stack, key: str) -> None:
    for body in (BODY, STREAM):
        async with api_on(broker) as one, api_on(broker) as two:
            sent = [(one, two)[index % 2].post(body, key + str("stream" in body)) for index in range(10)]
            await asyncio.gather(*(each.whole() for each in sent))
            assert one.n_runs + two.n_runs == 1
            assert len({each.body for each in sent}) == 1
            assert [each.is_replay for each in sent].count(False) == 1


@pytest.mark.parametrize("is_other_process", [False, True])
@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_the_run_survives_its_first_reader_and_ends_with_the_last(
    broker: Stack, key: str, is_other_process: bool, body: dict[str, Any]
) -> None:
    end = asyncio.Event()
    async with api_on(broker, delta("one "), end, finished()) as one, api_on(broker) as two:
        first = one.post(body, key)
        await until(one.jobs.has_started.is_set, "it runs")
        other = two if is_other_process else one
        second = other.post(body, key)
        if body is STREAM:
            await second.text("one ")
        await until(lambda: is_attached(broker, is_other_process), "the second reads")
        await first.leave()
        await asyncio.sleep(0.3)  # several times what a cancel takes
        assert not one.jobs.cancelled
        await second.leave()
        await until(one.jobs.was_cancelled.is_set, "it is cancelled", 1.0)
        end.set()
        third = await other.post(body, key).whole()
        assert third.status == 200
        assert not third.is_replay
        assert one.n_runs + two.n_runs == 2


def is_attached(broker: Stack, is_other_process: bool) -> bool:
    """A reader in the run's own process needs no time."""
    if not is_other_process:
        return True
    with broker.redis() as client:
        return bool(client.keys("lis:idem:readers:*"))


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_a_lone_reader_that_leaves_frees_the_key(broker: Stack, key: str, is_waiting: bool) -> None:
    end = asyncio.Event()
    async with api_on(broker, delta("one "), end, finished()) as one, api_on(broker) as two:
        one.jobs.waiting = [end] if is_waiting else []
        first = one.post(STREAM, key)
        await until(one.jobs.was_submitted.is_set, "it is in the queue")
        await first.leave()
        await until(one.jobs.was_cancelled.is_set, "it is cancelled", 1.0)
        end.set()
        again = await two.post(STREAM, key).whole()
        assert again.status == 200
        assert not again.is_replay
        assert (one.n_runs, two.n_runs) == (1, 1)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ServerBusy("busy", 3.0), 503),
        (RequestFailed(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long"), 400),
        (RequestFailed(ErrorCode.WORKER_LOST, "lost"), 500),
    ],
)
async def test_an_error_is_for_those_attached_and_frees_the_key(
    broker: Stack, key: str, failure: Exception, status: int
) -> None:
    end = asyncio.Event()
    async with api_on(broker) as one, api_on(broker) as two:
        one.jobs.waiting = [end, failure]
        first = one.post(BODY, key)
        await until(one.jobs.was_submitted.is_set, "it is in the queue")
        attached = [one.post(BODY, key), two.post(BODY, key)]
        await until(lambda: is_attached(broker, True), "the other process reads")
        end.set()
        for each in (first, *attached):
            await each.whole()
            assert each.status == status
            same_answer(first, each)
            assert each.headers.get("retry-after") == first.headers.get("retry-after")
        again = await two.post(BODY, key).whole()
        assert again.status == 200
        assert not again.is_replay


@pytest.mark.parametrize("path_body", [(CHATS, STREAM), ("/v1/responses", POSTS[3][1] | {"stream": True})])
async def test_an_error_in_mid_stream_is_for_those_attached_and_frees_the_key(
    broker: Stack, key: str, path_body: tuple[str, dict[str, Any]]
) -> None:
    path, body = path_body
    end = asyncio.Event()
    lost = RequestFailed(ErrorCode.WORKER_LOST, "The worker was lost.")
    async with api_on(broker, delta("one "), end, lost) as one, api_on(broker) as two:
        first = await one.post(body, key, path).text("one ")
        second = await two.post(body, key, path).text("one ")
        end.set()
        await first.text("The worker was lost.")
        again = await two.post(body, key, path).whole()  # at once: the key is free before the error is heard of
        assert not again.is_replay
        await asyncio.gather(first.whole(), second.whole())
        same_answer(first, second)


async def test_readers_of_a_lost_process_are_told_and_the_key_is_free(broker: Stack, key: str) -> None:
    never = asyncio.Event()
    async with api_on(broker, delta("one "), never) as one, api_on(broker) as two:
        streams = one.post(STREAM, key)
        await streams.text("one ")
        waits = one.post(BODY, key + "-whole")
        await until(lambda: one.n_runs == 2, "both run")
        stream, whole = two.post(STREAM, key), two.post(BODY, key + "-whole")
        await stream.text("one ")
        await until(lambda: is_attached(broker, True), "the other process reads")
        for run in runs_of(one):  # as if it had died: nobody renews what it holds
            for task in run._tasks:
                task.cancel()
        await asyncio.gather(stream.whole(7.0), whole.whole(7.0))
        assert whole.status == 503
        assert whole.code == "queue_unavailable"
        assert b'"error"' in stream.body
        assert not stream.body.endswith(b"[DONE]\n\n")
        again = await two.post(STREAM, key).whole()
        assert again.status == 200
        assert not again.is_replay
        for each in (streams, waits):
            each.task.cancel()


def runs_of(api: Api) -> list[idempotent_run.Run]:
    idempotency: Any = api.app.after_serving_funcs[-1]
    return list(idempotency.__self__._runs.values())


async def test_a_stopped_process_hands_waiting_requests_to_the_others(broker: Stack, key: str) -> None:
    never = asyncio.Event()
    async with api_on(broker, never) as one, api_on(broker) as two:
        first = one.post(BODY, key)
        await until(one.jobs.was_submitted.is_set, "it is in the queue")
        second = two.post(BODY, key)
        await until(lambda: is_attached(broker, True), "the other process reads")
        await one.app.shutdown()
        await second.whole()
        assert second.status == 200
        assert two.n_runs == 1
        await first.leave()


async def test_an_answer_is_forgotten_after_its_time(broker: Stack, key: str) -> None:
    async with api_on(broker, idempotency_ttl_s=1.0) as api:
        await api.post(BODY, key).whole()
        assert (await api.post(BODY, key).whole()).is_replay
        await until(lambda: not idem_keys(broker, "key:*"), "it lapses", 3.0)
        again = await api.post(OTHER, key).whole()
        assert again.status == 200
        assert not again.is_replay


def idem_keys(broker: Stack, kind: str = "*") -> list[bytes]:
    with broker.redis() as client:
        return list(client.keys(f"lis:idem:{kind}"))


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
