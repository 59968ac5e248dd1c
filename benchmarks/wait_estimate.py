"""How far off the estimate of the wait is: `GET /v1/queue` just before each request, against its `x-queue-wait-ms`.

    uv run python -m benchmarks.wait_estimate            # the fake engine, two minutes
    uv run python -m benchmarks.wait_estimate --real     # SmolLM2-135M on the CPU, four minutes

Requests of mixed sizes (prompts, `max_tokens`, a tenth of them embeddings) come at random times, on average a little
faster than they are served, seeded. Printed are the quartiles of |estimate - wait| / wait by the size of the wait.
Exit status 1 when the median over all that waited for 0.1 s or more is 30 % or above, or fewer than 200 did.
"""

import argparse
import itertools
import random
import statistics
import sys
import threading
import time
from typing import Any, NamedTuple

import httpx

from tests.stack import CHAT, EMBED, FAKE_ENV, Stack

WARM_UP = 20  #: requests before the ones that count: rates must have been measured
MIN_WAIT_S = 0.1
MIN_SCORED = 200
LIMIT = 0.30
EDGES_S = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, float("inf"))

FAKE_PACE = {"LIS_FAKE_TOKEN": "0.008", "LIS_FAKE_PREFILL": "0.25"}
REAL_SCALE = 0.25  #: for a model of 100 tokens a second
PATIENT = {"LIS_BUSY_TIMEOUT": "600", "LIS_MAX_QUEUE": "0"}
TOPICS = ("rivers", "bread", "trains", "stars", "gardens", "clocks", "bridges", "whales", "paper", "copper")


class Sample(NamedTuple):
    estimated_s: float
    waited_s: float

    @property
    def error(self) -> float:
        return abs(self.estimated_s - self.waited_s) / self.waited_s


def request(rng: random.Random, scale: float) -> tuple[str, dict[str, Any]]:
    """Path and body of one request. `scale` is the size of its prompt and its answer."""
    words = max(1, round(scale * rng.choice([rng.randint(5, 150), rng.randint(5, 150), rng.randint(210, 700)])))
    text = " ".join(rng.choices(TOPICS, k=words))
    if rng.random() < 0.1:
        return "/v1/embeddings", {"model": EMBED, "input": [text] * rng.randint(1, 4)}
    question = f"{'Never stop. ' if rng.random() < 0.2 else ''}Tell me about {rng.choice(TOPICS)}: {text}"
    body = {"model": CHAT, "messages": [{"role": "user", "content": question}], "seed": rng.randrange(1000)}
    return "/v1/chat/completions", body | {"max_tokens": round(scale * rng.choice([8, 16, 32, 48, 64, 96]))}


class Load:
    """Sends requests, each on a thread of its own, and collects what they were told and what they got."""

    def __init__(self, stack: Stack) -> None:
        self._client = stack.client(limits=httpx.Limits(max_connections=None))
        self._threads: list[threading.Thread] = []
        self.samples: list[Sample] = []
        self.asked_s: list[float] = []  #: how long the question took
        self.failures: list[str] = []

    def send(self, path: str, body: dict[str, Any]) -> None:
        thread = threading.Thread(target=self._ask, args=(path, body), daemon=True)
        thread.start()
        self._threads.append(thread)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()

    def report(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.get("/v1/queue").json()
        return answer

    def _ask(self, path: str, body: dict[str, Any]) -> None:
        began_s = time.monotonic()
        (group,) = self.report()["groups"]
        self.asked_s.append(time.monotonic() - began_s)
        estimate = group["lanes"]["interactive"]["estimate"]
        response = self._client.post(path, json=body, timeout=600.0)
        if response.status_code != 200:
            self.failures.append(response.text[:200])
            return
        waited_s = int(response.headers["x-queue-wait-ms"]) / 1000
        if estimate["is_measured"]:
            self.samples.append(Sample(estimate["wait_s"], waited_s))


def measure(stack: Stack, requests: int, load_factor: float, seed: int, scale: float) -> Load:
    rng = random.Random(seed)
    warm = Load(stack)
    began_s = time.monotonic()
    for _ in range(WARM_UP):
        warm.send(*request(rng, scale))
        warm.wait()
    mean_s = (time.monotonic() - began_s) / WARM_UP
    print(f"{mean_s * 1000:.0f} ms per request when they come one after the other")
    load = Load(stack)
    for _ in range(requests):
        load.send(*request(rng, scale))
        time.sleep(rng.expovariate(load_factor / mean_s))
    load.wait()
    return load


def quartiles(samples: list[Sample]) -> str:
    errors = [sample.error for sample in samples]
    if len(errors) < 2:
        return f"{len(errors):6}"
    low, middle, high = statistics.quantiles(errors, n=4)
    signed = statistics.median((sample.estimated_s - sample.waited_s) / sample.waited_s for sample in samples)
    return f"{len(errors):6} {low:8.1%} {middle:8.1%} {high:8.1%} {signed:+8.1%}"


def show(load: Load) -> bool:
    """Print the table; whether the estimates are good enough."""
    scored = [sample for sample in load.samples if sample.waited_s >= MIN_WAIT_S]
    print(f"{'wait':>12} {'n':>6} {'25 %':>8} {'median':>8} {'75 %':>8} {'bias':>8}")
    for low, high in itertools.pairwise(EDGES_S):
        part = [sample for sample in scored if low <= sample.waited_s < high]
        print(f"{low:>4.1f} - {high:>3.1f} s {quartiles(part)}")
    print(f"{'all':>12} {quartiles(scored)}")
    short = [sample.estimated_s for sample in load.samples if sample.waited_s < MIN_WAIT_S]
    if short:
        print(
            f"{len(short)} waited for less than {MIN_WAIT_S} s and were told {statistics.median(short):.2f} s (median)"
        )
    print(f"GET /v1/queue took {statistics.median(load.asked_s) * 1000:.1f} ms (median)")
    print(f"the server's own figure: {load.report()['estimate_error']}")
    for failure in load.failures[:5]:
        print(f"failed: {failure}")
    if len(scored) < MIN_SCORED or load.failures:
        print(f"{len(scored)} requests waited, {len(load.failures)} failed; {MIN_SCORED} and 0 were wanted")
        return False
    median = statistics.median(sample.error for sample in scored)
    print(f"median error {median:.1%} of the wait over {len(scored)} requests; the limit is {LIMIT:.0%}")
    return median < LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="SmolLM2-135M instead of the fake engine")
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--load", type=float, default=1.05, help="arrivals, in services of one slot")
    parser.add_argument("--parallel", type=int, default=1, help="slots")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    pace, scale = ({}, REAL_SCALE) if options.real else ({**FAKE_ENV, **FAKE_PACE}, 1.0)
    with Stack({**pace, **PATIENT, "LIS_PARALLEL": str(options.parallel)}) as stack:
        load = measure(stack, options.requests, options.load * options.parallel, options.seed, scale)
        sys.exit(0 if show(load) else 1)


if __name__ == "__main__":
    main()
