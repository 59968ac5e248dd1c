"""A short run of benchmarks/soak_races.py, and an outage of the broker while a worker has a free slot."""

import time
from collections.abc import Iterator

import pytest

from benchmarks import soak_races
from tests.integration.chat_client import FOREVER, assert_served, chat, wait_idle
from tests.stack import Stack
from tests.support import wait_until

N_REQUESTS = 300
N_TOKENS = 1000
AWAY_S = 0.5


@pytest.fixture(scope="module")
def slots() -> Iterator[Stack]:
    with Stack(soak_races.ENV, keep=True) as stack:
        yield stack


def test_what_was_refused_or_left_never_ran_and_nothing_ran_twice(slots: Stack) -> None:
    soak = soak_races.run(slots, N_REQUESTS, seed=3)
    assert soak.breaches == []
    assert soak.counts["requests"] == N_REQUESTS
    for name in ("answered whole", "answered 503", "left by their clients", "cancelled", "failed"):
        assert soak.counts[name] > 0, soak.counts  # else nothing was raced


def test_a_worker_with_a_free_slot_outlives_an_outage_in_mid_stream(slots: Stack) -> None:
    """It listens for messages then, and has one to acknowledge that came over the lost connection."""
    assert slots.worker is not None and slots.broker is not None
    pid = slots.worker.pid
    expected = chat(slots, FOREVER, max_tokens=N_TOKENS).wait().text
    for number in range(2):
        with chat(slots, FOREVER, max_tokens=N_TOKENS) as call:
            call.wait_text()
            slots.broker.kill() if number else slots.broker.stop()
            back_at = time.monotonic() + AWAY_S
            wait_until(lambda back_at=back_at: time.monotonic() > back_at, "away")  # type: ignore[misc]
            slots.start_broker()
            call.wait()
            assert call.has_done, (call.error, call.broken)
            assert call.text == expected
        slots.wait_ready()
        assert_served(slots)
        wait_idle(slots)
    assert slots.worker.pid == pid
