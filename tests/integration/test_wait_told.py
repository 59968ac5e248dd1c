"""What waiting requests are told, and deadlines: through real processes, with the fake engine."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.chat_client import (
    FOREVER,
    LONG_PROMPT,
    Call,
    assert_served,
    chat,
    embed,
    is_running,
    queue_len,
    wait_idle,
)
from tests.stack import CHAT, FAKE_ENV, Stack
from tests.support import wait_until

ANN = {"Authorization": "Bearer key-of-ann"}
BOB = {"Authorization": "Bearer key-of-bob"}
PACE = {"LIS_FAKE_TOKEN": "0.05", "LIS_FAKE_PREFILL": "1.0"}
TOKEN_S = 0.05


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    env = {**FAKE_ENV, **PACE, "LIS_BUSY_TIMEOUT": "30", "LIS_API_KEY": "ann:key-of-ann,bob:key-of-bob"}
    with Stack(env, keep=True) as stack:
        stack.key = "key-of-ann"
        for _ in range(4):
            chat(stack, "hello", stream=False, max_tokens=10).wait()
        embed(stack, [LONG_PROMPT, "b"]).wait()
        yield stack


@pytest.fixture
def stack(service: Stack) -> Iterator[Stack]:
    service.wait_ready()
    wait_idle(service)
    yield service
    wait_idle(service)


def queue(stack: Stack, query: str = "", headers: dict[str, str] = ANN) -> Any:
    answer = httpx.get(f"{stack.base}/v1/queue{query}", headers=headers, timeout=5.0)
    assert answer.status_code == 200, answer.text
    return answer.json()


def places(stack: Stack, query: str = "", headers: dict[str, str] = ANN) -> list[tuple[str, int]]:
    return sorted((one["state"], one["position"]) for one in queue(stack, query, headers)["requests"])


def post(stack: Stack, text: str, headers: dict[str, str] | None = None, **fields: Any) -> Call:
    body = {"model": CHAT, "messages": [{"role": "user", "content": text}], **fields}
    return Call(stack, "/v1/chat/completions", body, headers)


def assert_never_started(stack: Stack, call: Call) -> None:
    """The next request has run, and this one has not."""
    assert_served(stack)
    assert f"generation started request_id={call.id}" not in stack.log_text()


# -- GET /v1/queue --------------------------------------------------------------------------------------


def test_places_are_those_in_which_requests_run(stack: Stack) -> None:
    with chat(stack, FOREVER, max_tokens=40) as holder:
        holder.wait_text()
        calls = []
        for number in range(2):
            calls.append(chat(stack, "hello", max_tokens=4))
            wait_until(lambda number=number: len(places(stack)) == number + 2, "it waits")  # type: ignore[misc]
        report = queue(stack)
        assert places(stack) == [("running", 0), ("waiting", 1), ("waiting", 2)]
        (group,) = report["groups"]
        lane = group["lanes"]["interactive"]
        assert (lane["waiting"], lane["running"], group["slots"], group["workers"]) == (2, 1, 1, 1)
        assert lane["estimate"]["is_measured"] and lane["estimate"]["position"] == 3
        starts = [one["starts_at"] for one in sorted(report["requests"], key=lambda one: one["position"])]
        assert starts == sorted(starts)
        assert abs(starts[1] - time.time()) < 5
        for call in calls:
            assert call.wait().has_done
    assert places(stack) == []
    assert report["groups"][0]["rates"]["decode_tokens_per_s"] == pytest.approx(1 / TOKEN_S, rel=0.2)


def test_an_id_is_found_by_its_key_only(stack: Stack) -> None:
    with chat(stack, FOREVER, max_tokens=40) as holder:
        holder.wait_text()
        theirs = post(stack, "hello", BOB, max_tokens=2)
        wait_until(lambda: places(stack, headers=BOB) == [("waiting", 1)], "the other key's request waits")
        (mine,) = queue(stack)["requests"]
        assert mine["id"] == holder.id
        (other,) = queue(stack, headers=BOB)["requests"]
        assert places(stack, f"?id={holder.id}&id={other['id']}") == [("running", 0)]
        assert places(stack, f"?id={holder.id}&id={other['id']}", BOB) == [("waiting", 1)]
        assert places(stack, "?id=chatcmpl-unknown") == []
    assert theirs.wait().status == 200


def test_an_embeddings_request_has_a_place_too(stack: Stack) -> None:
    with chat(stack, FOREVER, max_tokens=40) as holder:
        holder.wait_text()
        call = embed(stack, ["a", "b"])
        wait_until(lambda: ("waiting", 1) in places(stack), "it waits")
        holder.leave()
        assert call.wait().status == 200


def test_a_frozen_redis_is_told_within_two_seconds(stack: Stack) -> None:
    assert stack.broker is not None
    stack.broker.popen.send_signal(signal.SIGSTOP)
    try:
        for _ in range(2):  # before it was noticed, and after
            began_s = time.monotonic()
            answer = httpx.get(f"{stack.base}/v1/queue", headers=ANN, timeout=5.0)
            assert time.monotonic() - began_s < 2.0
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "queue_unavailable"
    finally:
        stack.broker.popen.send_signal(signal.SIGCONT)
    wait_until(lambda: stack.health()["status"] == "ok", "redis is back")


# -- the wait, told -----------------------------------------------------------------------------------------


def test_every_answer_says_how_long_it_waited(stack: Stack) -> None:
    with chat(stack, FOREVER, max_tokens=30) as holder:
        holder.wait_text()
        answers = [
            chat(stack, "hello", max_tokens=2),
            chat(stack, "hello", stream=False, max_tokens=2),
            embed(stack, ["a"]),
            chat(stack, "word " * 5000, stream=False),
            post(stack, "hello", deadline_ms=400),
        ]
        for call in answers:
            call.wait()
    assert [call.status for call in answers] == [200, 200, 200, 400, 503]
    waits = [int(call.headers["x-queue-wait-ms"]) for call in answers]
    assert 350 <= waits[-1] <= 800
    for call, wait_ms in zip(answers, waits, strict=True):
        assert 300 < wait_ms <= call.took_s * 1000 + 50


def test_a_refusal_names_the_wait_it_expects(stack: Stack) -> None:
    """100 tokens at 20 a second are to come: half a second later the refused one would wait for some 4 s."""
    with chat(stack, FOREVER, max_tokens=100).begun(), chat(stack, FOREVER, max_tokens=100):
        call = post(stack, "hello", deadline_ms=500).wait()
    assert call.status == 503 and call.error is not None
    assert "would wait about" in call.error["message"]
    assert 2 <= int(call.headers["retry-after"]) <= 20


# -- deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_not_run_after_its_deadline(stack: Stack, stream: bool) -> None:
    with chat(stack, FOREVER, max_tokens=60) as holder:
        holder.wait_text()
        call = post(stack, "hello", stream=stream, deadline_ms=700).wait()
        assert call.status == 503
        assert 0.6 < call.took_s < 1.2
    assert_never_started(stack, call)


def test_a_deadline_that_is_far_enough_changes_nothing(stack: Stack) -> None:
    with chat(stack, FOREVER, max_tokens=20) as holder:
        holder.wait_text()
        call = post(stack, "hello", max_tokens=2, deadline_ms=20_000).wait()
    assert call.status == 200


def test_a_deadline_of_a_millisecond_is_a_refusal_or_an_answer(stack: Stack) -> None:
    calls = [post(stack, "hello", max_tokens=1, deadline_ms=1).wait() for _ in range(20)]
    assert {call.status for call in calls} <= {200, 503}
    wait_idle(stack)
    log = stack.log_text()
    ran = [f"generation started request_id={call.id}" in log for call in calls]
    assert ran == [call.status == 200 for call in calls]


def test_a_request_whose_deadline_passes_while_redis_is_frozen_is_not_run(stack: Stack) -> None:
    """The slot becomes free meanwhile, so the worker asks for it as soon as Redis wakes."""
    assert stack.broker is not None
    with chat(stack, FOREVER, max_tokens=20) as holder:
        holder.wait_text()
        call = post(stack, "hello", deadline_ms=1200)
        wait_until(lambda: queue_len(stack) == 1, "it waits")
        frozen_s = time.monotonic()
        stack.broker.popen.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: time.monotonic() > frozen_s + 2.5, "the deadline has passed")
        finally:
            stack.broker.popen.send_signal(signal.SIGCONT)
        call.wait()
    assert call.status == 503, call.body or call.broken
    stack.wait_ready()
    wait_idle(stack)
    assert_never_started(stack, call)


def test_a_second_attempt_is_not_run_after_the_deadline(stack: Stack) -> None:
    """Its engine dies during the prefill, and the next one is kept from being ready in time."""
    deadline_ms = 2500
    call = post(stack, LONG_PROMPT, max_tokens=2, deadline_ms=deadline_ms)
    wait_until(lambda: is_running(stack), "it runs")
    (first,) = stack.engine_pids()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: any(pid != first for pid in stack.engine_pids()), "another engine starts")
    (second,) = [pid for pid in stack.engine_pids() if pid != first]
    os.kill(second, signal.SIGSTOP)
    try:
        call.wait()
    finally:
        os.kill(second, signal.SIGCONT)
    assert call.status in (500, 503), call.body
    assert deadline_ms / 1000 - 0.2 < call.took_s < deadline_ms / 1000 + 2.0
    stack.wait_ready()
    assert_served(stack)
    assert stack.log_text().count(f"generation started request_id={call.id}") == 1
    assert f"request dropped: nobody waits for it request_id={call.id}" in stack.log_text()


# -- LIS_ADMISSION=estimate -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def estimating() -> Iterator[Stack]:
    env = {**FAKE_ENV, **PACE, "LIS_BUSY_TIMEOUT": "2", "LIS_ADMISSION": "estimate"}
    with Stack(env, keep=True) as stack:
        yield stack


def test_what_would_wait_far_beyond_its_deadline_is_refused_at_once_when_that_was_measured(estimating: Stack) -> None:
    """First nothing is measured, and a guess refuses nobody. 100 tokens take 5 s, the busy timeout is 2 s."""
    with chat(estimating, FOREVER, max_tokens=100) as holder:
        holder.wait_text()
        call = chat(estimating, "hello").wait()
        assert call.status == 503 and call.took_s > 1.9
    wait_idle(estimating)
    for _ in range(12):
        assert chat(estimating, FOREVER, stream=False, max_tokens=30).wait().status == 200
    started = estimating.started_count()
    with chat(estimating, FOREVER, max_tokens=200) as holder:
        holder.wait_text()
        call = chat(estimating, "hello").wait()
        assert call.status == 503 and call.error is not None
        assert call.took_s < 1.0, "it was refused at once"
        assert call.error["code"] == "server_busy"
        assert int(call.headers["retry-after"]) > 3
        assert int(call.headers["x-queue-wait-ms"]) < 1000
        patient = post(estimating, "hello", max_tokens=2, deadline_ms=50)
        assert patient.wait().status == 503
    wait_idle(estimating)
    assert estimating.started_count() == started + 1
    with chat(estimating, FOREVER, max_tokens=20) as holder:
        holder.wait_text()
        assert chat(estimating, "hello", max_tokens=2).wait().status == 200
