"""Deaths and hangs beyond a plain kill -9 (test_faults.py): each is heard of in time, none is tried for ever."""

import os
import signal
import time
from collections.abc import Callable

import redis

from tests.integration.chat_client import (
    FOREVER,
    LONG_PROMPT,
    assert_served,
    assert_told,
    chat,
    is_running,
    wait_idle,
)
from tests.stack import Stack
from tests.support import wait_until

TOLD_WITHIN_S = 6.0
STALL_TIMEOUT_S = 3.0  #: of `frail`


def signal_engine(frail: Stack, number: signal.Signals) -> None:
    (pid,) = frail.engine_pids()
    os.kill(pid, number)


def test_a_segmentation_fault_in_mid_stream_ends_the_engine_alone(frail: Stack) -> None:
    assert frail.worker is not None
    worker_pid = frail.worker.pid
    with chat(frail, FOREVER) as call:
        call.wait_text(3)
        since_s = time.monotonic()
        signal_engine(frail, signal.SIGSEGV)
        assert_told(call, since_s, TOLD_WITHIN_S)
    frail.wait_ready()
    assert_served(frail)
    assert frail.worker.pid == worker_pid


def test_an_engine_process_that_stands_still_is_killed_after_the_stall_timeout(frail: Stack) -> None:
    """Not even Python runs in it, so it cannot report a stall itself."""
    engines = frail.engine_pids()
    with chat(frail, FOREVER) as call:
        call.wait_text(3)
        since_s = time.monotonic()
        signal_engine(frail, signal.SIGSTOP)
        assert_told(call, since_s, STALL_TIMEOUT_S + 3.0)
    frail.wait_ready()
    assert frail.engine_pids() != engines
    assert_served(frail)


def test_a_request_that_killed_two_engines_is_not_tried_a_third_time(frail: Stack) -> None:
    started = frail.started_count()
    deaths: list[Callable[[], None]] = [
        lambda: signal_engine(frail, signal.SIGSEGV),
        lambda: signal_engine(frail, signal.SIGKILL),
    ]
    with chat(frail, LONG_PROMPT + "MARK-poison", max_tokens=5) as call:
        for number, die in enumerate(deaths, start=1):
            wait_until(lambda number=number: frail.started_count() == started + number, "it runs")  # type: ignore[misc]
            wait_until(lambda: is_running(frail), "the worker has it")
            died_s = time.monotonic()
            die()
        assert_told(call, died_s, TOLD_WITHIN_S)
        assert call.texts == []
    frail.wait_ready()
    assert_served(frail)
    wait_idle(frail)
    assert frail.started_count() == started + 3  # the poisonous one twice, and the one after it


def test_an_end_that_nobody_heard_is_told_all_the_same(frail: Stack) -> None:
    """The frame that says so goes to a channel without a listener, and the engine that could repeat it is gone."""
    assert frail.api is not None
    with chat(frail, FOREVER) as call:
        call.wait_text(3)
        frail.api.popen.send_signal(signal.SIGSTOP)
        try:
            with frail.redis() as client:
                wait_until(lambda: _cut_subscriptions(client) == 0, "nobody listens")
            reported = frail.log_text().count("engine process died")
            signal_engine(frail, signal.SIGKILL)
            wait_until(lambda: frail.log_text().count("engine process died") > reported, "its death was seen")
            wait_until(lambda: is_running(frail, 0), "and told to nobody")
        finally:
            frail.api.popen.send_signal(signal.SIGCONT)
        assert_told(call, time.monotonic(), 9.0)
    frail.wait_ready()
    assert_served(frail)


def _cut_subscriptions(client: "redis.Redis") -> int:
    """End the connections that listen; returns how many reply channels still have a listener."""
    client.client_kill_filter(_type="pubsub")
    return len(client.pubsub_channels("lis:reply:*"))
