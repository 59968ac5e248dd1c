"""Bad input at volume, against a whole service with the fake engine: `python -m benchmarks.fuzz_http`.

Needs `uv sync --group fuzz`. The same seed makes the same requests. Prints how many of each kind got which status, and
ends with 1 on any breach of: no 5xx but a 503 with Retry-After; every error in its envelope, telling nothing of the
inside; answers of status 200 as the OpenAPI description has them; an answer to every request that is whole; no exchange
without an end; afterwards the same processes, an empty queue, the same answer as before, and little more memory.
"""

import argparse
import asyncio
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import httpx
import psutil

from benchmarks.fuzz import http1, http2
from benchmarks.fuzz.checks import Checks
from benchmarks.fuzz.requests import BODIES, BODIES_KINDS, Case
from benchmarks.fuzz.wire import Talk, talk
from tests.stack import FAKE_ENV, Stack
from tests.support import wait_until

AT_ONCE = 12
DESCRIBED_SHARE = 0.1
BODIES_SHARE = 0.35
HTTP2_SHARE = 0.08
STALLED = 40  #: connections that stop and stay, where there are at least ten times as many requests
MAX_SHOWN = 30
MAX_GROWTH_MIB = 64.0

Play = Callable[[int], Awaitable[tuple[Talk, int]]]


class Planned(NamedTuple):
    kind: str
    play: Play  #: on a port; returns what came, and how many answers had to come


class Report:
    def __init__(self) -> None:
        self.statuses: dict[str, Counter[str]] = {}
        self.breaches: list[str] = []
        self.slowest_s: dict[str, float] = {}

    def note(self, kind: str, status: str, n: int = 1) -> None:
        self.statuses.setdefault(kind, Counter())[status] += n

    def breach(self, text: str) -> None:
        self.breaches.append(text)

    def show(self) -> None:
        total: Counter[str] = Counter()
        for kind, statuses in sorted(self.statuses.items()):
            total += statuses
            shown = "  ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
            print(f"{kind:<22} {self.slowest_s.get(kind, 0):5.1f} s at most   {shown}")
        print(f"{'all':<35}         " + "  ".join(f"{status} {count}" for status, count in sorted(total.items())))
        for breach in self.breaches[:MAX_SHOWN]:
            print("BREACH", breach)
        print(f"{len(self.breaches)} breaches")


# -- what to send --------------------------------------------------------------------------------


def plan(n: int, seed: int, key: str) -> list[Planned]:
    """Everything but the described cases: `n` exchanges in a random order."""
    rng = random.Random(seed)
    n_bodies = round(n * BODIES_SHARE)
    n_http2 = round(n * HTTP2_SHARE)
    planned = [_body_kind(rng, kind, key) for kind in rng.choices(list(BODIES_KINDS), k=n_bodies)]
    planned += [_http2(rng.getrandbits(64), key) for _ in range(n_http2)]
    weights = [weight for _, weight in http1.KINDS.values()]
    kinds = rng.choices(list(http1.KINDS), weights, k=n - n_bodies - n_http2)
    planned += [_http1(rng, kind, key) for kind in kinds]
    rng.shuffle(planned)
    n_stalled = STALLED if n >= 10 * STALLED else 0
    return [_http1(rng, "http: stalled", key) for _ in range(n_stalled)] + planned[: n - n_stalled]


def _body_kind(rng: random.Random, kind: str, key: str) -> Planned:
    seed = rng.getrandbits(64)
    return Planned(kind, lambda port: _told(port, http1.plain(BODIES_KINDS[kind](random.Random(seed)), key)))


def _http1(rng: random.Random, kind: str, key: str) -> Planned:
    seed = rng.getrandbits(64)
    return Planned(kind, lambda port: _told(port, http1.KINDS[kind][0](random.Random(seed), key)))


def _http2(seed: int, key: str) -> Planned:
    return Planned("http: 2", lambda port: http2.talk(port, random.Random(seed), key))


def _described(case: Case, key: str) -> Planned:
    return Planned("described", lambda port: _told(port, http1.plain(case, key)))


async def _told(port: int, script: Any) -> tuple[Talk, int]:
    return await talk(port, script), script.least


# -- sending -------------------------------------------------------------------------------------


async def send_all(planned: list[Planned], port: int, checks: Checks, report: Report) -> None:
    """`AT_ONCE` exchanges at a time; those that stop and stay run beside them."""
    numbered = list(enumerate(planned))
    stalled = [(number, item) for number, item in numbered if item.kind == "http: stalled"]
    queue = iter([(number, item) for number, item in numbered if item.kind != "http: stalled"])

    async def work() -> None:
        for number, item in queue:
            await send_one(number, item, port, checks, report)

    waiting = [asyncio.create_task(send_one(number, item, port, checks, report)) for number, item in stalled]
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    await asyncio.gather(*waiting)


async def send_one(number: int, item: Planned, port: int, checks: Checks, report: Report) -> None:
    started_s = time.monotonic()
    heard, least = await item.play(port)
    took_s = time.monotonic() - started_s
    report.slowest_s[item.kind] = max(took_s, report.slowest_s.get(item.kind, 0.0))
    where = f"{item.kind} #{number}:"
    if heard.has_hung:
        report.breach(f"{where} no end within {took_s:.0f} s")
    elif heard.garbage:
        report.breach(f"{where} {heard.garbage}")
    elif len(heard.answers) < least:
        report.breach(f"{where} {len(heard.answers)} answers to {least} requests")
    if not heard.answers:
        report.note(item.kind, "closed")
    for answer in heard.answers:
        report.note(item.kind, str(answer.status))
        if problem := checks.problem(answer):
            report.breach(f"{where} {answer.method} {answer.path[:60]}: {problem}")


# -- before and after ----------------------------------------------------------------------------


class Watch:
    """What must be as it was."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._pids = self.pids()
        self._answer = self.answer()
        self.before_mib = self.memory_mib()

    def pids(self) -> list[int]:
        processes = [process.pid for process in (self._stack.api, self._stack.worker) if process is not None]
        return processes + sorted(self._stack.engine_pids())

    def answer(self) -> str:
        with self._stack.client() as client:
            response = client.post(BODIES[0][0], json=BODIES[0][1])
            return f"{response.status_code} {response.json().get('choices')}"

    def memory_mib(self) -> float:
        return float(psutil.Process(self.pids()[0]).memory_info().rss) / 2**20

    def is_idle(self) -> bool:
        with self._stack.client() as client:
            workers = client.get("/health").json()["workers"]
            groups = client.get("/v1/queue").json()["groups"]
        waiting = sum(lane["waiting"] + lane["running"] for group in groups for lane in group["lanes"].values())
        return waiting == 0 and not any(worker["running"] for worker in workers)

    def check(self, report: Report) -> None:
        try:
            wait_until(self.is_idle, "nothing waits and nothing runs", 30.0)
        except (AssertionError, httpx.HTTPError) as exc:
            report.breach(f"afterwards: {exc}")
        if self.pids() != self._pids:
            report.breach(f"afterwards: the processes were {self._pids} and are {self.pids()}")
        if (answer := self.answer()) != self._answer:
            report.breach(f"afterwards: {answer} instead of {self._answer}")
        if "Traceback" in (log := self._stack.log_text()):
            at = log.index("Traceback")
            report.breach(f"a traceback in the logs ({log.count('Traceback')}): {log[max(0, at - 200) : at + 3000]}")
        after_mib = self.memory_mib()
        print(f"API memory: {self.before_mib:.0f} MiB before, {after_mib:.0f} MiB after")
        if after_mib - self.before_mib > MAX_GROWTH_MIB:
            report.breach(f"afterwards: the API has {after_mib - self.before_mib:.0f} MiB more")


def described_cases(document: dict[str, Any], n: int, seed: int) -> list[Case]:
    from benchmarks.fuzz.described import cases

    return cases(document, n, seed)


def fuzz(stack: Stack, n: int, seed: int, with_described: bool = True) -> Report:
    """`n` exchanges. Without `with_described` they need no schemathesis."""
    with stack.client() as client:
        document = client.get("/openapi.json").json()
    report, checks, watch = Report(), Checks(document), Watch(stack)
    n_described = round(n * DESCRIBED_SHARE) if with_described else 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        # made beside the others, as they take longer to make than to send
        making = pool.submit(described_cases, document, n_described, seed) if with_described else None
        asyncio.run(send_all(plan(n - n_described, seed, stack.key), stack.port, checks, report))
        if making is not None:
            described = [_described(case, stack.key) for case in making.result()]
            asyncio.run(send_all(described, stack.port, checks, report))
    watch.check(report)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--not-described", action="store_true", help="without what schemathesis makes")
    given = parser.parse_args()
    started_s = time.monotonic()
    with Stack(FAKE_ENV) as stack:
        report = fuzz(stack, given.requests, given.seed, not given.not_described)
    report.show()
    print(f"{given.requests} exchanges, seed {given.seed}, in {time.monotonic() - started_s:.0f} s")
    sys.exit(1 if report.breaches else 0)


if __name__ == "__main__":
    main()
