"""Whatever dies, every client hears of it at once, nobody is answered twice, and the next request is served."""

import os
import signal
import time
from collections.abc import Callable, Iterator

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
from tests.stack import FAKE_ENV, Stack
from tests.support import wait_until

TOLD_WITHIN_S = 6.0
PACE = {
    "LIS_FAKE_TOKEN": "0.05",
    "LIS_FAKE_PREFILL": "2.0",
    "LIS_BUSY_TIMEOUT": "40",
    "LIS_STALL_TIMEOUT": "3",
    "LIS_DRAIN_TIMEOUT": "10",
}


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    with Stack({**FAKE_ENV, **PACE}, keep=True) as stack:
        yield stack


@pytest.fixture
def stack(service: Stack) -> Iterator[Stack]:
    """Ready and idle, before and after."""
    service.wait_ready()
    wait_idle(service)
    yield service
    service.wait_ready()
    wait_idle(service)


def freeze_broker(stack: Stack) -> None:
    assert stack.broker is not None
    stack.broker.popen.send_signal(signal.SIGSTOP)


def thaw_broker(stack: Stack) -> None:
    assert stack.broker is not None
    stack.broker.popen.send_signal(signal.SIGCONT)


def kill_engine(stack: Stack) -> None:
    (pid,) = stack.engine_pids()
    os.kill(pid, signal.SIGKILL)


def kill_worker(stack: Stack) -> None:
    assert stack.worker is not None
    os.kill(stack.worker.pid, signal.SIGKILL)


def lose_both(stack: Stack) -> None:
    stack.lose_worker()


def assert_told(call: Call, since_s: float) -> None:
    """An error frame, no `[DONE]`, in time."""
    call.wait()
    assert call.error is not None, (call.texts[-3:], call.broken)
    assert call.error["code"] == "worker_lost"
    assert not call.has_done
    assert call.ended_s - since_s < TOLD_WITHIN_S


# -- engine and worker die --------------------------------------------------------------------------


def test_engine_killed_in_mid_stream(stack: Stack) -> None:
    assert stack.worker is not None
    worker_pid = stack.worker.pid
    with chat(stack, FOREVER) as call:
        call.wait_text(3)
        since_s = time.monotonic()
        kill_engine(stack)
        assert_told(call, since_s)
    stack.wait_ready()
    assert_served(stack)
    assert stack.worker.pid == worker_pid


def test_worker_killed_in_mid_stream(stack: Stack) -> None:
    with chat(stack, FOREVER) as call:
        call.wait_text(3)
        since_s = time.monotonic()
        kill_worker(stack)
        assert_told(call, since_s)
    wait_until(lambda: stack.health()["status"] != "ok", "its loss is seen")
    stack.wait_ready()
    assert_served(stack)


def test_worker_and_engine_killed_at_once(stack: Stack) -> None:
    """Nobody is left to tell: the heartbeat that lapses has to."""
    with chat(stack, FOREVER) as call:
        call.wait_text(3)
        since_s = time.monotonic()
        stack.lose_worker()
        assert_told(call, since_s)
    stack.start_worker()
    stack.wait_ready()
    assert_served(stack)


@pytest.mark.parametrize("kill", [kill_engine, kill_worker, lose_both])
def test_killed_before_any_token_it_runs_again_once(stack: Stack, kill: Callable[[Stack], None]) -> None:
    started = stack.started_count()
    with chat(stack, LONG_PROMPT + "MARK-again", max_tokens=5) as call:
        wait_until(lambda: stack.started_count() == started + 1, "it runs")
        call.wait_head()
        kill(stack)
        if kill is lose_both:
            stack.start_worker()
        call.wait()
        assert call.has_done, (call.status, call.error, call.broken)
        assert call.text.startswith("MARK-again")
    wait_idle(stack)
    assert stack.started_count() == started + 2


def test_a_killed_engine_runs_embeddings_again(stack: Stack) -> None:
    call = embed(stack, [LONG_PROMPT, "b"])
    wait_until(lambda: is_running(stack), "it runs")
    kill_engine(stack)
    assert call.wait().status == 200, call.body
    assert len(call.body["data"]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_kills_its_engine_fails_and_the_next_is_served(stack: Stack, stream: bool) -> None:
    call = chat(stack, "FAKE-CRASH", stream=stream).wait()
    assert call.error is not None
    assert call.error["code"] == "worker_lost"
    assert not call.has_done
    stack.wait_ready()
    assert_served(stack)


def test_a_hung_engine_is_replaced(stack: Stack) -> None:
    engines = stack.engine_pids()
    call = chat(stack, "FAKE-HANG").wait(20.0)
    assert call.error is not None
    assert call.error["code"] == "worker_lost"
    stack.wait_ready()
    assert stack.engine_pids() != engines
    assert_served(stack)


def test_terminated_worker_ends_what_runs_and_leaves_what_waits(stack: Stack) -> None:
    assert stack.worker is not None
    with chat(stack, "MARK-runs " + FOREVER, max_tokens=60) as running, chat(stack, "MARK-waits") as waiting:
        running.wait_text()
        wait_until(lambda: queue_len(stack) == 1, "one waits")
        os.kill(stack.worker.pid, signal.SIGTERM)
        assert running.wait().has_done, running.error
        assert len(running.texts) == 60
        assert waiting.wait().has_done, (waiting.status, waiting.error)
        assert waiting.text.startswith("MARK-waits")


# -- the broker ---------------------------------------------------------------------------------------


def undisturbed(stack: Stack, text: str) -> str:
    call = chat(stack, text, max_tokens=80).wait()
    assert call.has_done
    return call.text


def test_broker_restarted_while_idle(stack: Stack) -> None:
    stack.restart_broker()
    stack.wait_ready()
    assert_served(stack)


@pytest.mark.parametrize("how", ["restart", "kill", "freeze"])
def test_a_stream_survives_an_outage_of_the_broker(stack: Stack, how: str) -> None:
    assert stack.broker is not None
    text = f"{FOREVER} {how}"
    expected = undisturbed(stack, text)
    started = stack.started_count()
    with chat(stack, text, max_tokens=80) as call:
        call.wait_text(5)
        if how == "freeze":
            freeze_broker(stack)
            frozen_until = time.monotonic() + 3.0
            wait_until(lambda: time.monotonic() > frozen_until, "frozen for 3 s")
            thaw_broker(stack)
        else:
            stack.broker.kill() if how == "kill" else stack.broker.stop()
            stack.start_broker()
        call.wait(30.0)
        assert call.has_done, (call.error, call.broken)
        assert call.text == expected
    wait_idle(stack)
    assert stack.started_count() == started + 1


def test_a_stream_survives_an_outage_longer_than_the_heartbeats_life(stack: Stack) -> None:
    """The heartbeat lapses meanwhile, which says nothing of the worker."""
    assert stack.broker is not None
    expected = undisturbed(stack, FOREVER + " long")
    with chat(stack, FOREVER + " long", max_tokens=80) as call:
        call.wait_text(5)
        stack.broker.stop()
        away_until = time.monotonic() + 5.5
        wait_until(lambda: time.monotonic() > away_until, "away for longer than the TTL")
        stack.start_broker()
        call.wait(30.0)
        assert call.has_done, (call.error, call.broken)
        assert call.text == expected


def test_a_request_that_waits_survives_a_restart_of_the_broker(stack: Stack) -> None:
    with chat(stack, FOREVER) as holder, chat(stack, "MARK-waits", max_tokens=5) as waiting:
        holder.wait_text()
        wait_until(lambda: queue_len(stack) == 1, "one waits")
        stack.restart_broker()
        holder.wait_text(len(holder.texts) + 3)
        holder.leave()
        assert waiting.wait().has_done, (waiting.status, waiting.error)
        assert waiting.text.startswith("MARK-waits")


@pytest.mark.parametrize("how", ["stop", "freeze"])
def test_a_new_request_is_refused_soon_while_the_broker_is_away(stack: Stack, how: str) -> None:
    assert stack.broker is not None
    started = stack.started_count()
    if how == "freeze":
        freeze_broker(stack)
    else:
        stack.broker.stop()
    try:
        first, second = chat(stack, "hello"), chat(stack, "hello")
        third = embed(stack, ["hello"])
        for call in (first.wait(), second.wait(), third.wait(), chat(stack, "hello").wait()):
            assert call.status == 503, call.body
            assert call.error is not None
            assert call.error["code"] == "queue_unavailable"
            assert 1 <= int(call.headers["retry-after"]) <= 60
            assert call.took_s < 2.5
    finally:
        if how == "freeze":
            thaw_broker(stack)
        else:
            stack.start_broker()
    stack.wait_ready()
    wait_idle(stack)
    assert stack.started_count() == started
    assert_served(stack)


def test_leaving_while_the_broker_is_frozen_still_cancels(stack: Stack) -> None:
    call = chat(stack, FOREVER)
    call.wait_text()
    freeze_broker(stack)
    call.leave()
    thaw_broker(stack)
    left_s = time.monotonic()
    wait_until(lambda: is_running(stack, 0), "cancelled", 15.0)
    assert time.monotonic() - left_s < 10.0  # the rest of the answer takes 50 s


# -- the API process ----------------------------------------------------------------------------------------


def test_terminated_api_ends_what_runs_and_refuses_what_waits(stack: Stack) -> None:
    assert stack.api is not None
    with chat(stack, FOREVER, max_tokens=60) as running, chat(stack, "hello") as waiting:
        running.wait_text()
        wait_until(lambda: queue_len(stack) == 1, "one waits")
        since_s = time.monotonic()
        os.kill(stack.api.pid, signal.SIGTERM)
        waiting.wait()
        assert waiting.status == 503
        assert waiting.error is not None
        assert waiting.error["code"] == "queue_unavailable"
        assert waiting.ended_s - since_s < 1.5
        assert running.wait().has_done, (running.error, running.broken)
        assert len(running.texts) == 60
    assert stack.api.popen.wait(10) == 0
    stack.start_api()


def test_killed_api_leaves_nothing_running(stack: Stack) -> None:
    """Its generation ends when nobody hears it, and what waited does not run."""
    assert stack.api is not None
    started = stack.started_count()
    with chat(stack, FOREVER) as running, chat(stack, FOREVER) as waiting:
        running.wait_text()
        wait_until(lambda: queue_len(stack) == 1, "one waits")
        stack.api.kill()
        running.wait()
        waiting.wait()
    stack.start_api()
    wait_until(lambda: is_running(stack, 0) and queue_len(stack) == 0, "nothing runs", 15.0)
    assert stack.started_count() == started + 1
    stack.wait_ready()
    assert_served(stack)
