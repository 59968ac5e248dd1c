"""Whatever dies, every client hears of it at once, nobody is answered twice, and the next request is served."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.integration.chat_client import (
    FOREVER,
    LONG_PROMPT,
    assert_served,
    assert_told,
    chat,
    embed,
    is_running,
    queue_len,
    unacked,
    wait_idle,
)
from tests.stack import Stack
from tests.support import wait_until

TOLD_WITHIN_S = 6.0


def kill_engine(frail: Stack) -> None:
    (pid,) = frail.engine_pids()
    os.kill(pid, signal.SIGKILL)


def kill_worker(frail: Stack) -> None:
    assert frail.worker is not None
    os.kill(frail.worker.pid, signal.SIGKILL)


def lose_both(frail: Stack) -> None:
    frail.lose_worker()


# -- engine and worker die --------------------------------------------------------------------------


def test_engine_killed_in_mid_stream(frail: Stack) -> None:
    assert frail.worker is not None
    worker_pid = frail.worker.pid
    with chat(frail, FOREVER) as call:
        call.wait_text(3)
        since_s = time.monotonic()
        kill_engine(frail)
        assert_told(call, since_s, TOLD_WITHIN_S)
    frail.wait_ready()
    assert_served(frail)
    assert frail.worker.pid == worker_pid


def test_worker_killed_in_mid_stream(frail: Stack) -> None:
    with chat(frail, FOREVER) as call:
        call.wait_text(3)
        engines = frail.engine_pids()
        since_s = time.monotonic()
        kill_worker(frail)
        assert_told(call, since_s, TOLD_WITHIN_S)
    wait_until(lambda: frail.engine_pids() not in ([], engines), "another worker has an engine", 30.0)
    frail.wait_ready()
    assert_served(frail)


def test_worker_and_engine_killed_at_once(frail: Stack) -> None:
    """Nobody is left to tell: the heartbeat that lapses has to."""
    with chat(frail, FOREVER) as call:
        call.wait_text(3)
        since_s = time.monotonic()
        frail.lose_worker()
        assert_told(call, since_s, TOLD_WITHIN_S)
    frail.start_worker()
    frail.wait_ready()
    assert_served(frail)


@pytest.mark.parametrize("kill", [kill_engine, kill_worker, lose_both])
def test_killed_before_any_token_it_runs_again_once(frail: Stack, kill: Callable[[Stack], None]) -> None:
    started = frail.started_count()
    with chat(frail, LONG_PROMPT + "MARK-again", max_tokens=5) as call:
        wait_until(lambda: frail.started_count() == started + 1, "it runs")
        call.wait_head()
        kill(frail)
        if kill is lose_both:
            frail.start_worker()
        call.wait()
        assert call.has_done, (call.status, call.error, call.broken)
        assert call.text.startswith("MARK-again")
    wait_idle(frail)
    assert frail.started_count() == started + 2


def test_a_killed_engine_runs_embeddings_again(frail: Stack) -> None:
    call = embed(frail, [LONG_PROMPT, "b"])
    wait_until(lambda: is_running(frail), "it runs")
    kill_engine(frail)
    assert call.wait().status == 200, call.body
    assert len(call.body["data"]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_kills_its_engine_fails_and_the_next_is_served(frail: Stack, stream: bool) -> None:
    call = chat(frail, "FAKE-CRASH", stream=stream).wait()
    assert call.error is not None
    assert call.error["code"] == "worker_lost"
    assert not call.has_done
    frail.wait_ready()
    assert_served(frail)


def test_a_hung_engine_is_replaced(frail: Stack) -> None:
    engines = frail.engine_pids()
    call = chat(frail, "FAKE-HANG").wait(20.0)
    assert call.error is not None
    assert call.error["code"] == "worker_lost"
    frail.wait_ready()
    assert frail.engine_pids() != engines
    assert_served(frail)


def test_terminated_worker_ends_what_runs_and_leaves_what_waits(frail: Stack) -> None:
    assert frail.worker is not None
    with chat(frail, FOREVER, max_tokens=40).begun() as running, chat(frail, "MARK-waits") as waiting:
        running.wait_text()
        wait_until(lambda: queue_len(frail) == 1, "one waits")
        os.kill(frail.worker.pid, signal.SIGTERM)
        assert running.wait().has_done, running.error
        assert len(running.texts) == 40
        assert waiting.wait().has_done, (waiting.status, waiting.error)
        assert waiting.text.startswith("MARK-waits")


def test_terminated_worker_tells_who_takes_longer_than_the_drain_timeout(frail: Stack) -> None:
    assert frail.worker is not None
    with chat(frail, FOREVER) as call:
        call.wait_text()
        os.kill(frail.worker.pid, signal.SIGTERM)
        call.wait(20.0)
        assert call.error is not None
        assert call.error["code"] == "queue_unavailable"
        assert not call.has_done
    wait_until(lambda: frail.health()["status"] != "ok", "it stops")


def test_worker_terminated_while_its_engine_loads_gives_the_request_back(frail: Stack) -> None:
    assert frail.worker is not None
    with chat(frail, LONG_PROMPT + "MARK-back", max_tokens=2) as call:
        wait_until(lambda: is_running(frail), "it runs")
        kill_engine(frail)
        wait_until(lambda: unacked(frail) == 1 and is_running(frail, 0), "it waits for the new engine")
        os.kill(frail.worker.pid, signal.SIGTERM)
        assert call.wait(90.0).has_done, (call.status, call.error, call.broken)
        assert call.text.startswith("MARK-back")


# -- the API process ----------------------------------------------------------------------------------------


def test_terminated_api_ends_what_runs_and_refuses_what_waits(frail: Stack) -> None:
    assert frail.api is not None
    with (
        frail.client() as idle,  # a connection that is kept alive holds nothing up
        chat(frail, FOREVER, max_tokens=40).begun() as running,
        chat(frail, "hello") as waiting,
    ):
        assert idle.get("/health").status_code == 200
        running.wait_text()
        wait_until(lambda: queue_len(frail) == 1, "one waits")
        since_s = time.monotonic()
        os.kill(frail.api.pid, signal.SIGTERM)
        waiting.wait()
        assert waiting.status == 503
        assert waiting.error is not None
        assert waiting.error["code"] == "queue_unavailable"
        assert waiting.ended_s - since_s < 1.5
        assert running.wait().has_done, (running.error, running.broken)
        assert len(running.texts) == 40
        assert frail.api.popen.wait(3) == 0
    frail.start_api()


def test_killed_api_leaves_nothing_running(frail: Stack) -> None:
    """Its generation ends when nobody hears it, and what waited does not run."""
    assert frail.api is not None
    started = frail.started_count()
    with chat(frail, FOREVER).begun() as running, chat(frail, FOREVER) as waiting:
        running.wait_text()
        wait_until(lambda: queue_len(frail) == 1, "one waits")
        frail.api.kill()
        running.wait()
        waiting.wait()
    frail.start_api()
    wait_until(lambda: is_running(frail, 0) and queue_len(frail) == 0, "nothing runs", 15.0)
    assert frail.started_count() == started + 1
    frail.wait_ready()
    assert_served(frail)
