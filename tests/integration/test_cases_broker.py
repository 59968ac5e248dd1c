"""Reported bugs of Celery, Redis and monitors, on the whole service.

Outages of the broker (BRK-04): test_broker_outages.py; deaths of workers (BRK-06): test_faults.py, test_deaths.py.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery

from tasks.celery import celery_broker_url
from tests.integration.chat_client import FOREVER, chat, queue_len, wait_idle
from tests.service_calls import CHATS, Service
from tests.stack import CHAT
from tests.support import wait_until


def test_every_short_stream_is_whole(fake: Service) -> None:
    """BRK-01: its only token is out at once."""
    first = fake.chat_stream("Say A.", max_tokens=1)
    assert first.text
    for number in range(100):
        stream = fake.chat_stream("Say A.", max_tokens=1)
        assert (stream.text, stream.finish, stream.is_done) == (first.text, "length", True), number


def test_frames_that_nobody_heard_are_sent_again(slow: Service) -> None:
    """BRK-01: the subscription is cut off while the request waits, and in mid-stream."""
    stack = slow.stack
    wait_idle(stack)
    expected = chat(stack, f"{FOREVER} heard", max_tokens=24).wait()
    with chat(stack, f"{FOREVER} heard", max_tokens=24) as call, stack.redis() as client:
        client.client_kill_filter(_type="pubsub")
        for count in (3, 12):
            call.wait_text(count)
            client.client_kill_filter(_type="pubsub")
        call.wait()
    assert call.has_done, call.error
    assert call.text == expected.text


def test_a_message_that_is_delivered_again_does_not_run_again(slow: Service) -> None:
    """BRK-03: of a request that runs, and of one that waits, as the broker does after the visibility timeout."""
    stack = slow.stack
    wait_idle(stack)
    started = stack.started_count()
    expected = chat(stack, f"{FOREVER} once", max_tokens=20).wait()
    with chat(stack, f"{FOREVER} once", max_tokens=20) as running:
        running.wait_text()
        waiting = chat(stack, "hello", max_tokens=2)
        wait_until(lambda: queue_len(stack) == 1, "it waits")
        with stack.redis() as client:
            (queue,) = [key for key in client.keys("lis.*interactive*") if client.type(key) == b"list"]
            client.rpush(queue, client.lindex(queue, 0))
            (taken,) = client.hvals(f"lis:unacked:{stack.lis_env['LIS_WORKER_NAME']}")
            client.rpush(queue, json.dumps(json.loads(taken)[0]))
        assert running.wait().text == expected.text
        assert waiting.wait().has_done
    wait_idle(stack)
    assert stack.started_count() == started + 3


def test_redis_is_as_before_after_many_requests_and_a_monitor_that_was_killed(
    fake: Service, keys_have_ttl: None
) -> None:
    """BRK-07, BRK-08: chats, embeddings, streams that were left, pings, and the event queue that nobody reads."""
    stack = fake.stack
    command = [sys.executable, "-m", "celery", "-A", "tasks", "events", "--dump"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    monitor = subprocess.Popen(command, env=stack.env(), **quiet)
    with stack.redis() as client:
        wait_until(lambda: client.keys("_kombu.binding.celeryev"), "the monitor listens", 30.0)
        os.kill(monitor.pid, signal.SIGKILL)
        monitor.wait()
        some_requests(fake, 10)
        wait_idle(stack)
        before, bytes_before = client.dbsize(), client.info("memory")["used_memory"]
        bindings = sum(client.scard(key) for key in client.keys("_kombu.binding.*"))
        some_requests(fake, 150)
        pings = [_ping(stack.lis_env["LIS_REDIS_URL"]) for _ in range(5)]
        assert any(pings)
        wait_idle(stack)
        wait_until(lambda: client.dbsize() < before + 50, "no keys are left of the requests")
        assert client.info("memory")["used_memory"] - bytes_before < 2_000_000
        assert sum(client.scard(key) for key in client.keys("_kombu.binding.*")) < bindings + 20


def some_requests(fake: Service, count: int) -> None:
    def one(number: int) -> None:
        assert fake.chat(f"MARK-{number}", max_tokens=2).text
        assert len(fake.vectors([f"text {number}"])) == 1
        if number % 5 == 0:
            with fake.opened_stream(f"{FOREVER} {number}", max_tokens=900) as lines:
                next(lines)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(count)))


def _ping(url: str) -> list[Any]:
    asker = Celery("asker", broker=celery_broker_url(url), set_as_current=False)
    try:
        replies: list[Any] = asker.control.ping(timeout=0.3)
        return replies
    finally:
        asker.close()


def test_a_stream_is_whole_while_large_bodies_are_parsed(slow: Service) -> None:
    """BRK-10: the event loop is busy, and misses nothing."""
    expected = slow.chat_stream(f"{FOREVER} busy", max_tokens=24)
    body = json.dumps({"model": CHAT, "messages": "x", "junk": ["a" * 50] * 95_000}).encode()
    texts: list[str] = []
    reader = threading.Thread(target=lambda: texts.append(slow.chat_stream(f"{FOREVER} busy", max_tokens=24).text))
    reader.start()
    with ThreadPoolExecutor(8) as pool:
        statuses = set(pool.map(lambda _: slow.post(CHATS, body).status_code, range(16)))
    reader.join()
    assert statuses <= {400, 413}
    assert texts == [expected.text]
