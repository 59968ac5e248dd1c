"""What the service keeps in Redis, and what it does when Redis is full (benchmarks/load_queue.py)."""

from collections import Counter
from typing import Any

import redis

from benchmarks.load_client import Clients
from benchmarks.load_memory import resident_kib
from benchmarks.load_speed import QUIET, small_body, streaming_body
from tests.integration.chat_client import wait_idle
from tests.stack import Stack
from tests.support import wait_until

REQUESTS = 20_000
ROUND = 100  #: clients at once
STEP = 5_000
MAX_GROWTH_KIB = 512.0
FULL_REASONS = {"queue_unavailable", "server_busy"}

#: what Celery and kombu keep for as long as there is a worker: one set for each of its queues and exchanges, no more
STANDING = ("_kombu.binding", "lis:unacked")


def keys_without_ttl(client: "redis.Redis") -> list[str]:
    """Keys that nothing will ever remove."""
    keys = [key.decode() for key in client.scan_iter(count=1000)]
    return [key for key in keys if client.ttl(key) == -1 and not key.startswith(STANDING)]


def used_kib(client: "redis.Redis") -> float:
    info: Any = client.info("memory")
    return float(info["used_memory"]) / 1024


def flat() -> list[str]:
    breaches: list[str] = []
    seen: list[float] = []
    statuses: Counter[str] = Counter()
    body = small_body()
    env = {**QUIET, "LIS_PARALLEL": "8", "LIS_MAX_QUEUE": "0"}
    with Stack(env) as stack, Clients(stack.port, stack.key) as clients, stack.redis() as client:
        for done in range(ROUND, REQUESTS + 1, ROUND):
            clients.start("round", ROUND, body if done % (2 * ROUND) else {**body, "stream": True})
            statuses += Counter(clients.wait("round", 60.0).statuses)
            clients.forget("round")
            if done % STEP == 0:
                wait_idle(stack)
                seen.append(used_kib(client))
                api_mib = resident_kib(stack) / 1024
                print(
                    f"  after {done}: {seen[-1]:.0f} KiB in {client.dbsize()} keys; the API has {api_mib:.1f} MiB",
                    flush=True,
                )
        forever = keys_without_ttl(client)
    if forever:
        breaches.append(f"keys without a TTL: {forever[:10]}")
    if statuses != {"200": REQUESTS}:
        breaches.append(f"not every request was answered: {dict(statuses)}")
    if seen[-1] - seen[0] > MAX_GROWTH_KIB:
        breaches.append(f"memory grew by {seen[-1] - seen[0]:.0f} KiB")
    return breaches


def full(n_tokens: int = 500) -> list[str]:
    """No memory left while a stream runs and a request waits, for longer than a heartbeat lasts.

    The stream goes on, and new requests hear why not. The worker takes the one that waits when it can be claimed
    again, or it gets its 503; then all is as before.
    """
    breaches = []
    pace = {"LIS_FAKE_TOKEN": "0.02", "LIS_BUSY_TIMEOUT": "20"}
    with Stack({**QUIET, **pace}) as stack, Clients(stack.port, stack.key) as clients, stack.redis() as client:
        clients.start("stream", 1, streaming_body("Never stop", n_tokens))
        wait_until(lambda: clients.report("stream").words > 5, "it streams")
        clients.start("waiting", 1, streaming_body("Hello", 2))
        wait_until(lambda: any(client.zcard(key) for key in client.scan_iter("lis:lane:*")), "one waits")
        client.config_set("maxmemory", 1)
        refused = [_ask(stack) for _ in range(5)]
        stream = clients.wait("stream", 30.0)
        refused += [_ask(stack) for _ in range(5)]
        client.config_set("maxmemory", 0)
        wait_until(lambda: _ask(stack)[0] == 200, "served again", 30.0)
        waited = clients.wait("waiting", 30.0)
        wait_idle(stack)
        print(f"  full: {dict(Counter(code for _, code, _ in refused))}; {refused[-1][2]!r}")
        print(f"  the stream had {stream.words} of {n_tokens} words, the one that waited got {waited.statuses}")
        if stack.worker is None or not stack.worker.is_running():
            breaches.append("the worker has ended")
        if stream.words != n_tokens or stream.whole != 1:
            breaches.append("the stream was not whole")
        if set(waited.statuses) - {"200", "503 server_busy", "503 queue_unavailable"}:
            breaches.append("the one that waited was neither served nor refused")
    if any(status != 503 or code not in FULL_REASONS for status, code, _ in refused):
        breaches.append(f"answers while it was full: {refused}")
    return breaches


def _ask(stack: Stack) -> tuple[int, str | None, str]:
    """Status, error code and message of a small chat."""
    with stack.client() as client:
        answer = client.post("/v1/chat/completions", json=small_body())
    error = answer.json().get("error") or {}
    return answer.status_code, error.get("code"), error.get("message", "")
