"""Engine, worker, or both at once are killed at random moments, again and again: every client hears of it in time.

    uv run python -m benchmarks.soak_deaths [--times 30] [--seed 1] [--real]

Each round runs a stream, with a chat, a stream and an embedding waiting behind it, and sends SIGKILL or SIGSEGV to the
engine process, SIGKILL to the worker, or SIGKILL to both. What must hold:

- a stream that had begun ends with an error frame and no `[DONE]`, within 6 s of the death; or it had ended before
- what had sent nothing is served, with its own text (it starts again once), or told so by an error
- whatever was sent is answered, nothing runs a third time, and the service is back

`--real` takes SmolLM2 instead of the fake engine. Prints a table; exits with 1 on any breach.
"""

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import time
from collections import Counter

from benchmarks.soak_broker import PROMPTS, TOKENS, chat_body
from benchmarks.soak_client import Answer, ask
from tests.integration.chat_client import wait_idle
from tests.stack import EMBED, FAKE_ENV, Stack
from tests.support import wait_until

TOLD_WITHIN_S = 6.0
ENV = {"LIS_BUSY_TIMEOUT": "60", "LIS_N_CTX": "2048"}
FAKE = {**FAKE_ENV, "LIS_FAKE_TOKEN": "0.02", "LIS_FAKE_PREFILL": "1.0"}
LONG = "word " * 300  #: a prefill to be hit in
HOWS = ("engine SIGKILL", "engine SIGSEGV", "worker SIGKILL", "both SIGKILL")


class Soak:
    def __init__(self, stack: Stack, rng: random.Random) -> None:
        self._stack = stack
        self._rng = rng
        self._texts: dict[str, str] = {}
        self.seen: Counter[str] = Counter()
        self.breaches: list[str] = []
        self.told_s = 0.0
        self.back_s = 0.0

    async def run(self, times: int) -> None:
        self._texts = {said: (await self._chat(said, TOKENS)).text for said in PROMPTS}
        self._texts |= {LONG + said: (await self._chat(LONG + said, TOKENS)).text for said in PROMPTS}
        for number in range(times):
            how = HOWS[number % len(HOWS)]
            before = len(self.breaches)
            await self._round(how)
            for breach in self.breaches[before:]:
                print(f"BREACH: round {number}, {how}: {breach}", flush=True)
            await asyncio.to_thread(self._stack.wait_ready)
            await asyncio.to_thread(wait_idle, self._stack)
        runs = Counter(re.findall(r"generation started .*request_id=(\S+)", self._stack.log_text()))
        self.breaches += [f"{request_id} ran {count} times" for request_id, count in runs.items() if count > 2]
        self.seen["started again"] = sum(count == 2 for count in runs.values())

    async def _chat(self, said: str, tokens: int, stream: bool = True) -> Answer:
        return await ask(self._stack, said, "/v1/chat/completions", chat_body(said, tokens, stream))

    async def _round(self, how: str) -> None:
        first = self._rng.choice(("", LONG)) + self._rng.choice(PROMPTS)
        running = asyncio.create_task(self._chat(first, TOKENS))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(self._chat(self._rng.choice(PROMPTS), TOKENS, stream=n > 0)) for n in range(2)]
        body = {"model": EMBED, "input": ["a", "b"]}
        waiting.append(asyncio.create_task(ask(self._stack, "embedding", "/v1/embeddings", body)))
        sent_s = time.monotonic()
        await asyncio.sleep(self._rng.uniform(0.0, self._rng.choice((1.0, 5.0))))
        died_s = time.monotonic()
        self._kill(how)
        for task in (running, *waiting):
            self._judge(await task, died_s - sent_s)
        await asyncio.to_thread(self._wait_served)
        self.back_s = max(self.back_s, time.monotonic() - died_s)

    def _kill(self, how: str) -> None:
        number = signal.SIGSEGV if how.endswith("SIGSEGV") else signal.SIGKILL
        if self._stack.worker is None:
            raise RuntimeError("the worker is not running")
        engines, worker = self._stack.engine_pids(), self._stack.worker.pid
        for pid in {"e": engines, "w": [worker], "b": [worker, *engines]}[how[0]]:
            os.kill(pid, number)

    def _judge(self, answer: Answer, life_s: float) -> None:
        told = f"{answer.kind[-30:]!r}: {answer.status} {answer.code} {answer.broken} after {answer.took_s:.1f} s"
        text = self._texts.get(answer.kind, "")
        if answer.broken or answer.status not in (200, 500, 503):
            self.breaches.append(told)
        elif answer.code is None:
            self.seen["whole"] += 1
            if answer.text != text:
                self.breaches.append(f"wrong text {answer.text!r}, not {text!r}")
        else:
            self.seen[f"told {answer.code}"] += 1
            since_s = answer.took_s - life_s
            if answer.is_whole or not text.startswith(answer.text):
                self.breaches.append(f"a faked end, or wrong text: {told}")
            if answer.text:
                self.told_s = max(self.told_s, since_s)
                if since_s > TOLD_WITHIN_S:
                    self.breaches.append(f"told {since_s:.1f} s after the death: {told}")

    def _wait_served(self) -> None:
        def is_served() -> bool:
            return asyncio.run(self._chat(PROMPTS[0], 2)).is_whole

        wait_until(is_served, "the service is back", 90.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true")
    given = parser.parse_args()
    with Stack(ENV if given.real else {**ENV, **FAKE}, keep=True) as stack:
        soak = Soak(stack, random.Random(given.seed))
        asyncio.run(soak.run(given.times))
    print(f"{given.times} deaths (seed {given.seed})")
    for name, count in sorted(soak.seen.items()):
        print(f"{count:6}  {name}")
    print(f"slowest told {soak.told_s:.1f} s after the death; served again after {soak.back_s:.1f} s at worst")
    print(f"{len(soak.breaches)} breaches")
    return 1 if soak.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
