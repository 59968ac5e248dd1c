"""Requests raced against the busy timeout and against clients that leave: what was refused or left never ran.

    uv run python -m benchmarks.soak_races [--requests 10000] [--seed 1]

Fake engine, four slots, more clients than it can serve. Each request is a chat, a completion (streaming or not) or an
embedding; some wait for only a moment, some are left at a random moment: before they start, while the prompt is read,
in mid-stream. Afterwards the clients' records are compared with the logs of API, worker and engine:

- none that was answered 503, or cancelled before its start, ever ran
- none ran twice
- each one that ran ended in exactly one of finished, failed, cancelled, and its client heard of that very end
- no answer is missing, cut off, or of another kind

Prints the counts; exits with 1 on any breach.
"""

import argparse
import asyncio
import random
import re
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak_client import Answer, ask
from tests.integration.chat_client import wait_idle
from tests.stack import CHAT, EMBED, FAKE_ENV, Stack

CLIENTS = 40
N_SLOTS = 4
PACE = {"LIS_FAKE_TOKEN": "0.001", "LIS_FAKE_PREFILL": "0.03", "LIS_BUSY_TIMEOUT": "5", "LIS_PARALLEL": str(N_SLOTS)}
ENV = {**FAKE_ENV, **PACE, "LIS_MAX_QUEUE": "34"}
TYPICAL_WAIT_S = 0.25  #: of a request that is served; races are aimed at it
LONG_PROMPT = "word " * 300
ENDS = ("finished", "failed", "cancelled")

_EVENT = re.compile(
    r"(generation started|embedding started|request finished|request failed|request cancelled|request withdrawn)"
    r".* request_id=(\S+)"
)


@dataclass
class Soak:
    answers: list[Answer] = field(default_factory=list)
    took_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    breaches: list[str] = field(default_factory=list)


def plan(rng: random.Random, number: int) -> dict[str, Any]:
    """The arguments of one `ask`."""
    kind = rng.choices(("chat", "stream", "completion", "embedding"), (30, 40, 10, 20))[0]
    race = rng.choices(("none", "impatient", "leaves", "leaves the stream"), (35, 30, 25, 10))[0]
    is_long = rng.random() < 0.2
    said = (LONG_PROMPT if is_long else "") + rng.choices((f"MARK-{number} ", "FAKE-ERROR "), (95, 5))[0]
    max_tokens = rng.choice((1, 4, 12, 40))
    if race == "leaves the stream":  # of which there is still something to come then
        said, max_tokens = f"{said} Never stop.", 400
    match kind:
        case "embedding":
            texts = [said] + [f"text {number} {index}" for index in range(rng.choice((0, 1, 5, 9)))]
            call: dict[str, Any] = {"path": "/v1/embeddings", "body": {"model": EMBED, "input": texts}}
        case "completion":
            body = {"model": CHAT, "prompt": said, "max_tokens": max_tokens, "stream": rng.random() < 0.5}
            call = {"path": "/v1/completions", "body": body}
        case _:
            messages = [{"role": "user", "content": said}]
            body = {"model": CHAT, "messages": messages, "max_tokens": max_tokens, "stream": kind == "stream"}
            call = {"path": "/v1/chat/completions", "body": body}
    if race == "impatient":  # half of this is how long the server lets it wait
        call["headers"] = {"x-stainless-read-timeout": f"{rng.uniform(0.02, 4 * TYPICAL_WAIT_S):.3f}"}
    elif race == "leaves":
        call["leave_after_s"] = rng.uniform(0.001, 2 * TYPICAL_WAIT_S)
    elif race == "leaves the stream":
        call["leave_after_chunks"] = rng.randint(0, 5)
    return {"kind": kind, **call}


async def load(stack: Stack, n_requests: int, seed: int) -> list[Answer]:
    """All requests, by CLIENTS clients that ask one after the other."""
    rng = random.Random(seed)
    calls = iter([plan(rng, number) for number in range(n_requests)])
    answers: list[Answer] = []

    async def client() -> None:
        for call in calls:
            answers.append(await ask(stack, **call))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answers


def judge(answers: list[Answer], log: str) -> tuple[dict[str, int], list[str]]:
    """Counts, and what breaks a promise."""
    events: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event, request_id in _EVENT.findall(log):
        events[request_id][event.split()[-1]] += 1
    breaches = [text for request_id, seen in events.items() for text in _faults_of(request_id, seen)]
    for answer in answers:
        breaches += _faults_of_answer(answer, events)
    ran = {request_id for request_id, seen in events.items() if any(seen[end] for end in ("started", *ENDS))}
    withdrawn = {request_id for request_id, seen in events.items() if seen["withdrawn"]}
    heard = {answer.id for answer in answers if answer.id}
    silent = {request_id.partition(".")[0] for request_id in ran | withdrawn} - heard
    n_left_unheard = sum(answer.has_left and not answer.id for answer in answers)
    if len(silent) > n_left_unheard:
        breaches.append(f"{len(silent)} unknown requests in the logs, but {n_left_unheard} clients left without a head")
    refused = [answer for answer in answers if answer.status == 503]
    counts = {
        "requests": len(answers),
        "answered whole": sum(answer.is_whole for answer in answers),
        "answered with an error of their own": sum(bool(a.code) and a.status != 503 for a in answers),
        "answered 503": len(refused),
        "left by their clients": sum(answer.has_left for answer in answers),
        "withdrawn before they ran (refused or left)": len(withdrawn),
        "ran (slices of embeddings count each)": len(ran),
        **{end: sum(seen[end] for seen in events.values()) for end in ENDS},
        "503 or withdrawn, and ran": len(({answer.id for answer in refused} | withdrawn) & ran),
        "ran twice": sum(seen["started"] > 1 for seen in events.values()),
        "no answer, or a broken one": sum(bool(answer.broken) for answer in answers),
    }
    return counts, breaches


def _faults_of(request_id: str, seen: Counter[str]) -> list[str]:
    ends = sum(seen[end] for end in ENDS)
    faults = []
    if seen["withdrawn"] and (seen["started"] or ends):
        faults.append(f"{request_id} was withdrawn and ran: {dict(seen)}")
    if seen["started"] > 1:
        faults.append(f"{request_id} ran {seen['started']} times")
    if ends > 1 or (seen["started"] and not ends):
        faults.append(f"{request_id} did not end in exactly one way: {dict(seen)}")
    return faults


def _faults_of_answer(answer: Answer, events: dict[str, Counter[str]]) -> list[str]:
    if answer.broken:
        return [f"{answer.kind} {answer.id}: {answer.broken}"]
    if answer.has_left:
        return []
    seen = events.get(answer.id, Counter())
    told = f"{answer.id} was answered {answer.status} {answer.code or ''}, and the logs say {dict(seen)}"
    if answer.status == 503:
        is_true = not seen["started"] and not any(seen[end] for end in ENDS) and answer.code == "server_busy"
    elif answer.code:
        is_true = answer.code == "internal_error" and (seen["failed"] == 1 or answer.kind == "embedding")
    else:
        is_true = answer.status == 200 and answer.is_whole and seen["finished"] == 1
    return [] if is_true else [told]


def run(stack: Stack, n_requests: int, seed: int) -> Soak:
    began_s = time.monotonic()
    answers = asyncio.run(load(stack, n_requests, seed))
    soak = Soak(answers, time.monotonic() - began_s)
    wait_idle(stack)
    soak.counts, soak.breaches = judge(answers, stack.log_text())
    return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with Stack(ENV) as stack:
        soak = run(stack, given.requests, given.seed)
    print(f"seed {given.seed}, {soak.took_s:.0f} s, {given.requests / soak.took_s:.0f} requests/s")
    for name, count in soak.counts.items():
        print(f"{count:8}  {name}")
    print(f"{len(soak.breaches):8}  breaches")
    for breach in soak.breaches[:20]:
        print("BREACH:", breach)
    return 1 if soak.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
