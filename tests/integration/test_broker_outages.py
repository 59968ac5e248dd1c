"""The broker stops, dies or freezes: streams go on whole, and new requests are told at once."""

import signal
import time

import pytest

from tests.integration.chat_client import FOREVER, assert_served, chat, embed, is_running, queue_len, wait_idle
from tests.stack import Stack
from tests.support import wait_until


def freeze_broker(frail: Stack) -> None:
    assert frail.broker is not None
    frail.broker.popen.send_signal(signal.SIGSTOP)


def thaw_broker(frail: Stack) -> None:
    assert frail.broker is not None
    frail.broker.popen.send_signal(signal.SIGCONT)


def undisturbed(frail: Stack, text: str) -> str:
    call = chat(frail, text, max_tokens=80).wait()
    assert call.has_done
    return call.text


def test_broker_restarted_while_idle(frail: Stack) -> None:
    frail.restart_broker()
    frail.wait_ready()
    assert_served(frail)


@pytest.mark.parametrize("how", ["restart", "kill", "freeze"])
def test_a_stream_survives_an_outage_of_the_broker(frail: Stack, how: str) -> None:
    assert frail.broker is not None
    text = f"{FOREVER} {how}"
    expected = undisturbed(frail, text)
    started = frail.started_count()
    with chat(frail, text, max_tokens=80) as call:
        call.wait_text(5)
        if how == "freeze":
            freeze_broker(frail)
            frozen_until = time.monotonic() + 3.0
            wait_until(lambda: time.monotonic() > frozen_until, "frozen for 3 s")
            thaw_broker(frail)
        else:
            frail.broker.kill() if how == "kill" else frail.broker.stop()
            frail.start_broker()
        call.wait(30.0)
        assert call.has_done, (call.error, call.broken)
        assert call.text == expected
    wait_idle(frail)
    assert frail.started_count() == started + 1


def test_a_stream_survives_an_outage_longer_than_the_heartbeats_life(frail: Stack) -> None:
    """The heartbeat lapses meanwhile, which says nothing of the worker."""
    assert frail.broker is not None
    expected = undisturbed(frail, FOREVER + " long")
    with chat(frail, FOREVER + " long", max_tokens=80) as call:
        call.wait_text(5)
        frail.broker.stop()
        away_until = time.monotonic() + 5.5
        wait_until(lambda: time.monotonic() > away_until, "away for longer than the TTL")
        frail.start_broker()
        call.wait(30.0)
        assert call.has_done, (call.error, call.broken)
        assert call.text == expected


def test_a_request_that_waits_survives_a_restart_of_the_broker(frail: Stack) -> None:
    with chat(frail, FOREVER).begun() as holder, chat(frail, "MARK-waits", max_tokens=5) as waiting:
        holder.wait_text()
        wait_until(lambda: queue_len(frail) == 1, "one waits")
        frail.restart_broker()
        holder.wait_text(len(holder.texts) + 3)
        holder.leave()
        assert waiting.wait().has_done, (waiting.status, waiting.error)
        assert waiting.text.startswith("MARK-waits")


@pytest.mark.parametrize("how", ["stop", "freeze"])
def test_a_new_request_is_refused_soon_while_the_broker_is_away(frail: Stack, how: str) -> None:
    assert frail.broker is not None
    started = frail.started_count()
    if how == "freeze":
        freeze_broker(frail)
    else:
        frail.broker.stop()
    try:
        first, second = chat(frail, "hello"), chat(frail, "hello")
        third = embed(frail, ["hello"])
        for call in (first.wait(), second.wait(), third.wait(), chat(frail, "hello").wait()):
            assert call.status == 503, call.body
            assert call.error is not None
            assert call.error["code"] == "queue_unavailable"
            assert 1 <= int(call.headers["retry-after"]) <= 60
            assert call.took_s < 2.5
    finally:
        if how == "freeze":
            thaw_broker(frail)
        else:
            frail.start_broker()
    frail.wait_ready()
    wait_idle(frail)
    assert frail.started_count() == started
    assert_served(frail)


def test_leaving_while_the_broker_is_frozen_still_cancels(frail: Stack) -> None:
    call = chat(frail, FOREVER)
    call.wait_text()
    freeze_broker(frail)
    call.leave()
    thaw_broker(frail)
    left_s = time.monotonic()
    wait_until(lambda: is_running(frail, 0), "cancelled", 15.0)
    assert time.monotonic() - left_s < 10.0  # the rest of the answer takes 50 s
