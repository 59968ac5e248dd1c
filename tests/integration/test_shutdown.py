"""SIGTERM to the API, and one of two workers replaced under load (SIGTERM to the only worker: test_faults.py)."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.integration.chat_client import FOREVER, assert_served, chat, is_running, wait_idle
from tests.stack import FAKE_ENV, Process, Stack
from tests.support import wait_until

DRAIN_S = 1.5
GRACE_S = 2.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Stack]:
    """Two workers of the same models: that of the stack, which is started again when it ends, and another."""
    pace = {"LIS_FAKE_TOKEN": "0.02", "LIS_BUSY_TIMEOUT": "30", "LIS_DRAIN_TIMEOUT": str(DRAIN_S)}
    with Stack({**FAKE_ENV, **pace}, keep=True) as stack:
        env = {**stack.env(), "LIS_WORKER_NAME": f"other-{stack.port}"}
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-n", "other@%h"]
        other = Process([*command, "--without-mingle", "--without-gossip"], env, stack.dir / "other.log")
        try:
            wait_until(lambda: n_ready(stack) == 2, "both are ready", 60.0)
            yield stack
        finally:
            other.stop()


def n_ready(stack: Stack) -> int:
    return sum(worker["status"] == "ready" for worker in stack.health().get("workers", []))


def test_a_worker_replaced_under_load_drops_nothing(pair: Stack) -> None:
    """Six clients ask without a pause while one of the two ends in order and comes back."""
    stop = threading.Event()
    seen: list[tuple[str, int, str]] = []
    assert pair.worker is not None
    old = pair.worker

    def client(name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            mark = f"MARK-{name}x{number}"
            call = chat(pair, mark, stream=number % 2 == 0, max_tokens=8).wait()
            seen.append((mark, call.status, call.text if call.status == 200 and not call.error else str(call.error)))

    clients = [threading.Thread(target=client, args=(name,)) for name in range(6)]
    for thread in clients:
        thread.start()
    try:
        wait_until(lambda: len(seen) > 20, "load", 30.0)
        os.kill(old.pid, signal.SIGTERM)
        assert old.popen.wait(20) == 0
        wait_until(lambda: n_ready(pair) == 2, "its successor is ready", 60.0)
        served = len(seen)
        wait_until(lambda: len(seen) > served + 20, "load on both", 30.0)
    finally:
        stop.set()
        for thread in clients:
            thread.join()
    assert [entry for entry in seen if entry[1] != 200 or not entry[2].startswith(entry[0])] == []


def test_a_terminated_api_refuses_connections_and_ends_what_takes_too_long(pair: Stack) -> None:
    assert pair.api is not None
    with chat(pair, FOREVER, max_tokens=40) as short, chat(pair, FOREVER) as long:
        short.wait_text()
        long.wait_text()
        since_s = time.monotonic()
        os.kill(pair.api.pid, signal.SIGTERM)
        wait_until(lambda: not accepts(pair.port), "new connections are refused", 1.0)
        assert short.wait().has_done, (short.error, short.broken)
        assert len(short.text.split()) == 40
        long.wait()
        assert long.error is not None, long.broken
        assert long.error["type"] == "server_error"
        assert not long.has_done
        assert DRAIN_S <= long.ended_s - since_s < DRAIN_S + GRACE_S
        assert pair.api.popen.wait(GRACE_S) == 0
    wait_until(lambda: is_running(pair, 0), "the slot of the one that was ended is free")
    pair.start_api()
    pair.wait_ready()
    assert_served(pair)
    wait_idle(pair)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
