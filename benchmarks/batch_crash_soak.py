"""A batch of embeddings, while worker, engine, API and broker are killed at random moments.

    uv run python -m benchmarks.batch_crash_soak [--lines 10000] [--kills 20] [--broker-restarts 5] [--seed 1] [--real]

Every kill is SIGKILL. What was killed is started again, as a supervisor does; nobody touches the batch. What must hold:

- the batch completes by itself
- each line is answered once, in the order of the input
- vectors are those of single calls (cosine > 0.9999), for a sample of the lines

`--real` takes MiniLM instead of the fake engine. Prints what happened; exits with 1 on any breach.
"""

import argparse
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from typing import Any

import httpx

from benchmarks.batch_client import (
    answers,
    create,
    done_lines,
    embed_singly,
    embedding_line,
    least_cosine,
    retrieve,
    text_of,
    vectors_of,
    wait_ended,
)
from tests.stack import FAKE_ENV, Stack

FAKE = {**FAKE_ENV, "LIS_FAKE_PREFILL": "0.15"}
LONG_WORDS = 210  #: texts of more than 200 words take the fake engine LIS_FAKE_PREFILL
COSINE = 0.9999
LONG_EVERY = 25  #: every so manieth text is long
AT_ONCE = 0.3  #: of the kills that come shortly after the one before, whatever state all is in
COMPLETES_WITHIN_S = 900.0
WHAT = ("worker", "API", "engine", "worker and engine", "worker", "API")


class Soak:
    def __init__(self, stack: Stack, client: httpx.Client, rng: random.Random, lines: int, long_every: int) -> None:
        self._stack = stack
        self._client = client
        self._rng = rng
        self.texts = [text_of(rng, n, LONG_WORDS if n % long_every == 0 else rng.randint(2, 40)) for n in range(lines)]
        self.killed: Counter[str] = Counter()
        self.breaches: list[str] = []
        self.took_s = 0.0
        self.least_cosine = 0.0
        self._began_s = 0.0

    def run(self, kills: int, broker_restarts: int, checked: int) -> None:
        self._began_s = time.monotonic()
        batch_id = create(self._client, [embedding_line(n, text) for n, text in enumerate(self.texts)])
        whats = [WHAT[n % len(WHAT)] for n in range(kills)] + ["broker"] * broker_restarts
        self._rng.shuffle(whats)
        points = sorted(self._rng.uniform(0.0, 0.9) for _ in whats)
        for what, point in zip(whats, points, strict=True):
            if not self._wait_for(batch_id, int(point * len(self.texts))):
                self.breaches.append(f"the batch had ended before the kill of {what}: take more lines")
                break
            self._kill(what)
        batch = wait_ended(self._client, batch_id, COMPLETES_WITHIN_S)
        self.took_s = time.monotonic() - self._began_s
        self._say(f"{batch['status']} {batch['request_counts']}")
        self._judge(batch, checked)

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {what}", flush=True)

    def _wait_for(self, batch_id: str, lines: int) -> bool:
        """Until so many lines are done; or, now and then, only for a moment. False: the batch has ended."""
        moment_s = time.monotonic() + (self._rng.uniform(0, 3) if self._rng.random() < AT_ONCE else 600.0)
        while time.monotonic() < moment_s:
            batch = retrieve(self._client, batch_id)
            if batch is not None and batch["status"] == "completed":
                return False
            if batch is not None and batch["status"] == "in_progress" and done_lines(batch) >= lines:
                self._say(f"{done_lines(batch)} lines done")
                return True
            time.sleep(0.05)
        return True

    def _kill(self, what: str) -> None:
        stack = self._stack
        self.killed[what] += 1
        self._say(f"kill -9 {what}")
        if what == "broker" and stack.broker is not None:
            stack.broker.kill()
            time.sleep(self._rng.uniform(0, 1))
            stack.start_broker()
        elif what == "API" and stack.api is not None:
            stack.api.kill()
            time.sleep(self._rng.uniform(0, 0.5))
            stack.start_api()
        elif stack.worker is not None:
            engines = stack.engine_pids() if "engine" in what else []
            for pid in [stack.worker.pid] * ("worker" in what) + engines:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    self._say("it was just starting again")

    def _judge(self, batch: dict[str, Any], checked: int) -> None:
        if batch["status"] != "completed" or batch["request_counts"]["completed"] != len(self.texts):
            self.breaches.append(f"it ended as {batch['status']} with {batch['request_counts']}")
            errors = answers(self._client, batch["error_file_id"])
            self.breaches += [str(error)[:300] for error in errors[:3]]
            return
        lines = answers(self._client, batch["output_file_id"])
        if [line["custom_id"] for line in lines] != [f"text-{n}" for n in range(len(self.texts))]:
            self.breaches.append("the output has not each line once, in order")
            return
        if len({line["id"] for line in lines}) != len(lines):
            self.breaches.append("two lines have one id")
        if any(line["error"] or line["response"]["status_code"] != 200 for line in lines):
            self.breaches.append("an output line is an error")
        sample = sorted(self._rng.sample(range(len(lines)), min(checked, len(lines))))
        self._stack.wait_ready()
        singly = embed_singly(self._client, [self.texts[n] for n in sample])
        batched = [vectors_of(lines[n]["response"]["body"])[0] for n in sample]
        self.least_cosine = least_cosine(singly, batched)
        if self.least_cosine <= COSINE:
            self.breaches.append(f"a vector differs from that of a single call: cosine {self.least_cosine}")
        self._say(f"{len(sample)} vectors compared with single calls: least cosine {self.least_cosine:.7f}")

    def report(self) -> None:
        log = self._stack.log_text()
        print(", ".join(f"{count} x {what}" for what, count in sorted(self.killed.items())) + " killed with SIGKILL")
        print(f"{len(re.findall('embedding started', log))} slices and single calls begun")
        print(f"{log.count('batch runs')} times an API process took the batch up; {self.took_s:.0f} s in all")
        for breach in self.breaches:
            print(f"BREACH: {breach}")
        print(f"{len(self.breaches)} breaches")


def run(
    stack: Stack,
    lines: int,
    kills: int,
    broker_restarts: int,
    seed: int,
    checked: int = 300,
    long_every: int = LONG_EVERY,
) -> Soak:
    with stack.client() as client:
        soak = Soak(stack, client, random.Random(seed), lines, long_every)
        soak.run(kills, broker_restarts, checked)
        soak.report()
    return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20, help="of worker, engine and API")
    parser.add_argument("--broker-restarts", type=int, default=5, help="kills of the broker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="MiniLM instead of the fake engine")
    given = parser.parse_args()
    with Stack({} if given.real else FAKE, keep=True) as stack:
        soak = run(stack, given.lines, given.kills, given.broker_restarts, given.seed)
    return 1 if soak.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
