"""Many that wait, and some that read slowly: what they cost the API process (benchmarks/load_queue.py)."""

from statistics import median

import psutil

from benchmarks.load_client import Clients, Report
from benchmarks.load_speed import QUIET, STREAMS, small_body, streaming_body
from tests.integration.chat_client import wait_idle, worker_state
from tests.stack import Stack
from tests.support import wait_until

WAITING = 1000
MAX_KIB_EACH = 20.0
DEFAULT_MAX_QUEUE = 64
ENV = {**QUIET, "LIS_PARALLEL": str(STREAMS), "LIS_N_CTX": "65536", "LIS_MAX_MODEL_LENGTH": "60000"}
HONEST = {"200", "503 server_busy"}
SLOW, FAST = 8, 24
MIN_RATIO = 0.9
MAX_SLOW_KIB = 1024.0


def _api(stack: Stack) -> psutil.Process:
    if stack.api is None:
        raise RuntimeError("the API was not started")
    return psutil.Process(stack.api.pid)


def resident_kib(stack: Stack) -> float:
    """What the API process alone has in memory."""
    return float(_api(stack).memory_full_info().uss / 1024)


def connections(stack: Stack) -> int:
    """Clients that the API has a socket for."""
    sockets = _api(stack).net_connections("tcp")
    return sum(1 for one in sockets if one.status != psutil.CONN_LISTEN)


def queue(stack: Stack) -> dict[str, int]:
    """Waiting and running, as the API says."""
    with stack.client() as client:
        lanes = [lane for group in client.get("/v1/queue").json()["groups"] for lane in group["lanes"].values()]
    return {name: sum(lane[name] for lane in lanes) for name in ("waiting", "running")}


def start_streams(stack: Stack, clients: Clients) -> None:
    clients.start("streams", STREAMS, streaming_body("Never stop", 50_000))
    wait_until(lambda: _running(stack) == STREAMS, "all streams run", 30.0)


def _running(stack: Stack) -> int:
    state = worker_state(stack)
    return 0 if state is None else len(state.running)


def warm_up(clients: Clients, n: int) -> None:
    """Connections and buffers that stay, and what is imported at the first request."""
    clients.start("warm", n, streaming_body("Hello", 8))
    clients.wait("warm", 60.0)


def waiting() -> list[str]:
    env = {**ENV, "LIS_FAKE_TOKEN": "0.02", "LIS_MAX_QUEUE": "0", "LIS_BUSY_TIMEOUT": "300"}
    breaches = []
    with Stack(env) as stack, Clients(stack.port, stack.key) as clients:
        warm_up(clients, STREAMS)
        start_streams(stack, clients)
        before_kib = resident_kib(stack)
        clients.start("waiting", WAITING, small_body())
        wait_until(lambda: queue(stack)["waiting"] == WAITING, "all of them wait", 60.0)
        each_kib = (resident_kib(stack) - before_kib) / WAITING
        print(f"  {WAITING} waiting, {STREAMS} streaming: {each_kib:.1f} KiB for each that waits")
        if each_kib > MAX_KIB_EACH:
            breaches.append(f"a request that waits costs over {MAX_KIB_EACH:.0f} KiB")
        streams = clients.leave("streams")
        answered = clients.wait("waiting", 120.0)
        wait_idle(stack)
        print(f"  served: {answered.statuses}, whole {answered.whole}, broken {answered.broken}")
        if answered.statuses != {"200": WAITING} or answered.whole != WAITING or streams.statuses != {"200": STREAMS}:
            breaches.append("not every request was answered")
        breaches += left_behind(stack, before_kib)
    return breaches


def full() -> list[str]:
    """Here they leave instead of being served."""
    env = {**ENV, "LIS_FAKE_TOKEN": "0.02", "LIS_BUSY_TIMEOUT": "300"}
    breaches = []
    with Stack(env) as stack, Clients(stack.port, stack.key) as clients:
        warm_up(clients, STREAMS)
        start_streams(stack, clients)
        before_kib = resident_kib(stack)
        clients.start("waiting", WAITING, small_body())
        refused = WAITING - DEFAULT_MAX_QUEUE
        wait_until(lambda: clients.report("waiting").ended >= refused, "the others are refused", 60.0)
        left, streams = clients.leave("waiting"), clients.leave("streams")
        wait_idle(stack)
        print(f"  {left.statuses}, with Retry-After {left.with_retry_after}; told within {left.took_s:.1f} s")
        wanted = {"503 server_busy": refused, "none": DEFAULT_MAX_QUEUE}
        if left.statuses != wanted or left.with_retry_after != refused or streams.statuses != {"200": STREAMS}:
            breaches.append(f"the answers were to be {wanted}")
        breaches += left_behind(stack, before_kib)
    return breaches


def left_behind(stack: Stack, before_kib: float) -> list[str]:
    """What is still there of requests that are over."""
    wait_until(lambda: connections(stack) == 0, "connections are closed")
    breaches = []
    after_kib = resident_kib(stack) - before_kib
    counts = queue(stack)
    print(f"  afterwards: {counts}, {after_kib / 1024:+.1f} MiB")
    if any(counts.values()):
        breaches.append(f"still there: {counts}")
    with stack.redis() as client:
        open_claims = [key for key in client.scan_iter("lis:claim:*") if client.get(key) == b"waiting"]
        if open_claims:
            breaches.append(f"{len(open_claims)} claims are still open")
    return breaches


def slow() -> list[str]:
    """As many words as fit no socket buffer, at a pace that a fast client keeps up with easily."""
    env = {**ENV, "LIS_FAKE_TOKEN": "0.001"}
    breaches = []
    with Stack(env) as stack, Clients(stack.port, stack.key) as clients:
        warm_up(clients, STREAMS)
        alone = _fast(clients, "alone")
        before_kib = resident_kib(stack)
        clients.start("slow", SLOW, streaming_body("Never stop", 50_000), bytes_per_s=1)
        beside = _fast(clients, "beside")
        each_kib = (resident_kib(stack) - before_kib) / SLOW
        ratio = median(beside.rates) / median(alone.rates)
        print(f"  {FAST} fast ones: {median(alone.rates):.0f} tokens/s alone, {ratio:.2f} x beside {SLOW} slow ones")
        wait_until(lambda: _running(stack) == 0, "the engine is done with the slow ones", 120.0)
        last_kib = (resident_kib(stack) - before_kib) / SLOW
        print(f"  a slow one costs {each_kib:.0f} KiB, and {last_kib:.0f} KiB with its whole answer unread")
        if ratio < MIN_RATIO or beside.whole != FAST:
            breaches.append("slow clients slow down the others")
        if last_kib > MAX_SLOW_KIB:
            breaches.append(f"a slow client costs over {MAX_SLOW_KIB:.0f} KiB")
        clients.leave("slow")
        wait_idle(stack)
    return breaches


def _fast(clients: Clients, group: str) -> Report:
    clients.start(group, FAST, streaming_body("Never stop", 5_000))
    return clients.wait(group, 120.0)
