"""Many clients at once, slow ones, and a Redis that is full. benchmarks/load_queue.py has the same with its figures."""

from collections.abc import Iterator
from statistics import median

import pytest

from benchmarks import load_redis
from benchmarks.load_client import Clients
from benchmarks.load_memory import connections, queue
from benchmarks.load_speed import small_body, streaming_body
from tests.integration.chat_client import chat, embed, is_running, wait_idle
from tests.stack import FAKE_ENV, Stack
from tests.support import wait_until

STREAMS = 8
MAX_QUEUE = 60
TOKEN_S = 0.03


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Eight slots of 33 tokens/s each, and long answers."""
    size = {"LIS_PARALLEL": str(STREAMS), "LIS_N_CTX": "65536", "LIS_MAX_MODEL_LENGTH": "60000"}
    with Stack({**FAKE_ENV, **size, "LIS_FAKE_TOKEN": str(TOKEN_S), "LIS_MAX_QUEUE": str(MAX_QUEUE)}) as stack:
        yield stack


@pytest.fixture
def clients(stack: Stack) -> Iterator[Clients]:
    with Clients(stack.port, stack.key) as clients:
        yield clients
    wait_idle(stack)


def test_what_fits_waits_and_is_served_and_the_rest_is_told_when_to_come_back(stack: Stack, clients: Clients) -> None:
    clients.start("streams", STREAMS, streaming_body("Never stop", 50_000))
    wait_until(lambda: is_running(stack, STREAMS), "all stream")
    clients.start("waiting", 2 * MAX_QUEUE, small_body())
    wait_until(lambda: clients.report("waiting").ended == MAX_QUEUE, "those that do not fit are refused")
    assert queue(stack) == {"waiting": MAX_QUEUE, "running": STREAMS}
    assert clients.leave("streams").statuses == {"200": STREAMS}
    answered = clients.wait("waiting", 20.0)
    assert answered.statuses == {"200": MAX_QUEUE, "503 server_busy": MAX_QUEUE}
    assert (answered.whole, answered.with_retry_after) == (MAX_QUEUE, MAX_QUEUE)
    wait_until(lambda: connections(stack) == 0, "every connection is closed")
    wait_idle(stack)
    with stack.redis() as client:
        assert b"waiting" not in [client.get(key) for key in client.scan_iter("lis:claim:*")]


def test_each_token_leaves_before_the_next_one_is_there(clients: Clients) -> None:
    clients.start("one", 1, streaming_body("FAKE-CLOCK Never stop", 50), is_timed=True)
    report = clients.wait("one", 20.0)
    assert (report.completion_tokens, report.words) == (50, 50)
    assert len(report.delays_ms) == 50
    assert 0 < median(report.delays_ms) < 1000 * TOKEN_S


def test_slow_readers_do_not_hold_up_the_engine_or_the_others(stack: Stack, clients: Clients) -> None:
    clients.start("slow", 2, streaming_body("Never stop", 130), bytes_per_s=1)
    clients.start("fast", STREAMS - 2, streaming_body("Never stop", 100))
    fast = clients.wait("fast", 20.0)
    assert (fast.whole, fast.words) == (STREAMS - 2, 100 * (STREAMS - 2))
    wait_until(lambda: is_running(stack, 0), "the slow ones' answers are generated", 20.0)
    assert clients.leave("slow").received_bytes < 100


def test_everything_in_redis_goes_away_by_itself(stack: Stack, clients: Clients) -> None:
    clients.start("chats", 30, streaming_body("Hello", 2))
    clients.wait("chats", 20.0)
    clients.start("leave", STREAMS, streaming_body("Never stop", 1000))
    wait_until(lambda: is_running(stack, STREAMS), "all stream")
    waiting = chat(stack, "Hello")
    wait_until(lambda: queue(stack)["waiting"] == 1, "one waits")
    with stack.redis() as client:
        assert load_redis.keys_without_ttl(client) == []
    waiting.leave()
    clients.leave("leave")
    assert embed(stack, ["a", "b"]).wait().status == 200
    wait_idle(stack)
    with stack.redis() as client:
        assert load_redis.keys_without_ttl(client) == []


def test_a_full_redis_refuses_and_recovers_and_the_worker_and_its_stream_live_on() -> None:
    assert load_redis.full(n_tokens=330) == []  # longer than a heartbeat lasts
