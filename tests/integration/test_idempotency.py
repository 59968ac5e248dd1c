"""Idempotency keys: the real app on a real Redis, with a queue that is scripted. Two apps are two API processes."""

import asyncio
from typing import Any

import pytest

from api.job_types import RequestFailed, ServerBusy
from tasks.contracts import ErrorCode
from tests.integration.idempotent_apps import (
    BODY,
    CHATS,
    STREAM,
    api_on,
    is_attached,
    runs_of,
    same_answer,
    until,
)
from tests.stack import Stack
from tests.unit.fake_jobs import delta, finished
from tests.unit.routes_support import POSTS

pytestmark = pytest.mark.usefixtures("empty_broker")


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
