"""The broker is stopped, killed or frozen for 0.2 to 5 s, again and again: streams go on whole, nobody hangs.

    uv run python -m benchmarks.soak_broker [--times 50] [--seed 1] [--real]

Each round takes the broker away at a random moment: in mid-stream, while requests wait, or while nothing runs. First
`--times` rounds with the broker stopped (SIGTERM or SIGKILL, then started again), then as many with it frozen (SIGSTOP,
then SIGCONT). What must hold:

- a stream ends whole, with the very text of an undisturbed run
- a request that waits is served, with its own text, or told 503
- a request that comes meanwhile is told `503 queue_unavailable` within 2 s
- the worker takes a new task within 3 s of the broker's return
- whatever was sent is answered

`--real` takes SmolLM2 instead of the fake engine. Prints a table; exits with 1 on any breach.
"""

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak_client import Answer, ask
from tests.integration.chat_client import wait_idle
from tests.stack import CHAT, EMBED, FAKE_ENV, Stack

REFUSED_WITHIN_S = 2.0
BACK_WITHIN_S = 3.0
OUTAGE_S = (0.2, 5.0)
MOMENTS = ("in mid-stream", "while requests wait", "while idle")
HOWS = ("stopped", "frozen")
N_SLOTS = 2
ENV = {"LIS_PARALLEL": str(N_SLOTS), "LIS_BUSY_TIMEOUT": "20"}
FAKE = {**FAKE_ENV, "LIS_FAKE_TOKEN": "0.02"}
TOKENS = 150
PROMPTS = [f"Tell a long story about a {word}. Never stop." for word in ("sailor", "garden", "river")]


@dataclass
class Row:
    """What was seen in the rounds of one kind of outage at one kind of moment."""

    rounds: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    refusal_s: float = 0.0
    back_s: list[float] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)


def chat_body(said: str, max_tokens: int, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": said}]
    return {"model": CHAT, "messages": messages, "max_tokens": max_tokens, "stream": stream, "temperature": 0}


class Soak:
    """`run` plays the rounds of one kind of outage."""

    def __init__(self, stack: Stack, rng: random.Random) -> None:
        self._stack = stack
        self._rng = rng
        self._texts: dict[tuple[str, int], str] = {}
        self._is_away = False

    async def run(self, how: str, times: int) -> dict[str, Row]:
        rows = {moment: Row() for moment in MOMENTS}
        for said, tokens in [(said, tokens) for said in PROMPTS for tokens in (TOKENS, 5)]:
            self._texts[said, tokens] = (await self._chat(said, tokens, True)).text
        for number in range(times):
            moment = MOMENTS[number % len(MOMENTS)]
            row = rows[moment]
            row.rounds += 1
            before = len(row.breaches)
            await self._round(how, moment, row)
            await asyncio.to_thread(wait_idle, self._stack)
            for breach in row.breaches[before:]:
                print(f"BREACH: round {number}, {how} {moment}: {breach}", flush=True)
        return rows

    async def _chat(self, said: str, tokens: int, stream: bool) -> Answer:
        return await ask(self._stack, said, "/v1/chat/completions", chat_body(said, tokens, stream))

    async def _round(self, how: str, moment: str, row: Row) -> None:
        streams = [asyncio.create_task(self._chat(self._rng.choice(PROMPTS), TOKENS, True))]
        waiting: list[asyncio.Task[Answer]] = []
        if moment == "while idle":
            await streams.pop()
        elif moment == "while requests wait":
            streams.append(asyncio.create_task(self._chat(self._rng.choice(PROMPTS), TOKENS, True)))
            await asyncio.sleep(0.3)
            waiting = [
                asyncio.create_task(self._chat(self._rng.choice(PROMPTS), 5, number % 2 == 0)) for number in range(4)
            ]
            body = {"model": EMBED, "input": ["a", "b"]}
            waiting.append(asyncio.create_task(ask(self._stack, "embedding", "/v1/embeddings", body)))
        await asyncio.sleep(self._rng.uniform(0.0, 2.0 if moment == "in mid-stream" else 0.3))
        probes = await self._outage(how, row)
        for answer in await asyncio.gather(*streams):
            self._judge(answer, TOKENS, "stream", {200}, row)
        for answer in await asyncio.gather(*waiting):
            self._judge(answer, 5, "waiting request", {200, 503}, row)
        for answer in await asyncio.gather(*probes):
            self._judge(answer, 5, "request meanwhile", {200, 503}, row)

    async def _outage(self, how: str, row: Row) -> "list[asyncio.Task[Answer]]":
        """Take the broker away and bring it back; returns the requests sent meanwhile."""
        length_s = self._rng.uniform(*OUTAGE_S)
        sharp = self._rng.random() < 0.5
        broker = self._stack.broker
        if broker is None:
            raise RuntimeError("the broker is not running")
        self._is_away = True
        if how == "frozen":
            broker.popen.send_signal(signal.SIGSTOP)
        else:
            await asyncio.to_thread(broker.kill if sharp else broker.stop)
        probes = []
        end_s = time.monotonic() + length_s
        while (left_s := end_s - time.monotonic()) > 0:
            probes.append(asyncio.create_task(self._probe(row)))
            await asyncio.sleep(min(left_s, self._rng.uniform(0.1, 1.0)))
        self._is_away = False
        if how == "frozen":
            broker.popen.send_signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(self._stack.start_broker)
        await self._wait_back(row)
        return probes

    async def _probe(self, row: Row) -> Answer:
        answer = await self._chat(self._rng.choice(PROMPTS), 5, self._rng.random() < 0.5)
        if answer.status == 503 and answer.code == "queue_unavailable":
            row.refusal_s = max(row.refusal_s, answer.took_s)
            if answer.took_s > REFUSED_WITHIN_S:
                row.breaches.append(f"a request meanwhile was refused after {answer.took_s:.1f} s")
        elif self._is_away:
            row.breaches.append(f"a request meanwhile got {answer.status} {answer.code} {answer.broken}")
        return answer

    async def _wait_back(self, row: Row) -> None:
        """Until a new request runs. The slots may be held, so that one that waits for a slot counts, too."""
        back_s = time.monotonic()
        while True:
            sent_s = time.monotonic()
            answer = await self._chat(PROMPTS[0], 5, True)
            if answer.status == 200:
                row.back_s.append(sent_s + answer.head_s - back_s)
                return
            if time.monotonic() > back_s + 30:
                row.breaches.append(f"no new request ran for 30 s: {answer.status} {answer.code} {answer.broken}")
                return
            await asyncio.sleep(0.05)

    def _judge(self, answer: Answer, tokens: int, what: str, allowed: set[int], row: Row) -> None:
        status = answer.status if not answer.code or answer.status != 200 else 0
        if answer.broken or status not in allowed:
            row.seen[f"{what}: lost"] += 1
            row.breaches.append(f"{what}: {answer.status} {answer.code} {answer.broken} after {answer.took_s:.1f} s")
        elif status == 503:
            row.seen[f"{what}: told 503"] += 1
        elif answer.kind != "embedding" and answer.text != self._texts[answer.kind, tokens]:
            row.seen[f"{what}: wrong text"] += 1
            row.breaches.append(f"{what}: {answer.text!r} instead of {self._texts[answer.kind, tokens]!r}")
        else:
            row.seen[f"{what}: whole"] += 1


def judge(how: str, rows: dict[str, Row]) -> int:
    """Prints one kind of outage; returns the breaches."""
    n_breaches = 0
    for moment, row in rows.items():
        worst_s = max(row.back_s, default=0.0)
        if moment != "while requests wait" and worst_s > BACK_WITHIN_S:  # there it waits for a slot
            row.breaches.append(f"a new request ran only {worst_s:.1f} s after the broker's return")
            print(f"BREACH: {how} {moment}: {row.breaches[-1]}")
        n_breaches += len(row.breaches)
        counts = ", ".join(f"{name} {count}" for name, count in sorted(row.seen.items()))
        print(f"{how} {moment}: {row.rounds} times; {counts or 'nothing else ran'}")
        times = sorted(row.back_s)
        print(
            f"    slowest refusal {row.refusal_s:.2f} s; a new request ran after "
            f"{times[len(times) // 2] if times else 0:.2f} s (median), {worst_s:.2f} s (worst); "
            f"breaches {len(row.breaches)}"
        )
    return n_breaches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--how", choices=HOWS, action="append")
    given = parser.parse_args()
    n_breaches = 0
    with Stack(ENV if given.real else {**ENV, **FAKE}, keep=True) as stack:
        for how in given.how or HOWS:
            soak = Soak(stack, random.Random(given.seed))
            n_breaches += judge(how, asyncio.run(soak.run(how, given.times)))
    print(f"{n_breaches} breaches (seed {given.seed})")
    return 1 if n_breaches else 0


if __name__ == "__main__":
    sys.exit(main())
