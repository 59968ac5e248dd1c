"""How long chats and embeddings wait during a batch of embeddings, against the same without one.

    uv run python -m benchmarks.batch_interactive_wait [--lines 10000] [--requests 60]

MiniLM and SmolLM2, one thread each. A client asks now for a chat, now for an embedding, with pauses of random length.
Printed are p50 and p95 of `x-queue-wait-ms` and of the time until the answer's head is there, without and with a batch
that runs meanwhile, and what the batch's slices took. Exit status 1 when the p95 of the wait that a batch adds is two
slices or more.
"""

import argparse
import random
import re
import statistics
import sys
import time
from typing import Any, NamedTuple

import httpx

from benchmarks.batch_client import create, embedding_line, retrieve, text_of
from tests.stack import CHAT, EMBED, Stack

SLICE = re.compile(r"request finished request_id=(embd-\S+) .*prompt_ms=(\S+)")


class Wait(NamedTuple):
    queue_s: float
    head_s: float


def ask(client: httpx.Client, number: int) -> Wait:
    said = [{"role": "user", "content": f"Say a word about {number}."}]
    path, body = (
        ("/v1/chat/completions", {"model": CHAT, "messages": said, "max_tokens": 8, "stream": True}),
        ("/v1/embeddings", {"model": EMBED, "input": f"a short text, number {number}"}),
    )[number % 2]
    began_s = time.monotonic()
    with client.stream("POST", path, json=body) as answer:
        head_s = time.monotonic() - began_s
        answer.raise_for_status()
        answer.read()
    return Wait(int(answer.headers["x-queue-wait-ms"]) / 1000, head_s)


def ask_now_and_then(client: httpx.Client, requests: int, seed: int) -> list[Wait]:
    rng = random.Random(seed)
    waits = []
    for number in range(requests):
        time.sleep(rng.uniform(0.2, 2.0))
        waits.append(ask(client, number))
    return waits


def quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def show(name: str, waits: list[Wait]) -> None:
    for kind, part in (("chats", waits[0::2]), ("embeddings", waits[1::2]), ("all", waits)):
        queue, head = [wait.queue_s for wait in part], [wait.head_s for wait in part]
        print(
            f"{name:14} {kind:10} waited p50 {quantile(queue, 50):5.2f} s, p95 {quantile(queue, 95):5.2f} s; "
            f"head after p50 {quantile(head, 50):5.2f} s, p95 {quantile(head, 95):5.2f} s"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=3)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    lines: list[dict[str, Any]] = [embedding_line(n, text_of(rng, n, rng.randint(5, 120))) for n in range(given.lines)]
    with Stack() as stack, stack.client() as client:
        for number in range(4):
            ask(client, number)
        alone = ask_now_and_then(client, given.requests, given.seed)
        before = len(SLICE.findall(stack.log_text()))
        batch_id = create(client, lines)
        while (now := retrieve(client, batch_id)) is None or not now["request_counts"]["completed"]:
            time.sleep(0.1)
        beside = ask_now_and_then(client, given.requests, given.seed)
        still = retrieve(client, batch_id)
        client.post(f"/v1/batches/{batch_id}/cancel")
        own = [float(ms) / 1000 for _, ms in SLICE.findall(stack.log_text())[before:]]
    slices_s = [s for s in own if s > 0.1]  # what the client asked for takes less
    if still is None or still["status"] != "in_progress":
        print("the batch had ended before the last request: take more lines")
        return 1
    show("without batch", alone)
    show("during a batch", beside)
    slice_s = statistics.median(slices_s)
    added = quantile([w.queue_s for w in beside], 95) - quantile([w.queue_s for w in alone], 95)
    print(
        f"{len(slices_s)} slices: p50 {slice_s:.2f} s, p95 {quantile(slices_s, 95):.2f} s, "
        f"longest {max(slices_s):.2f} s"
    )
    print(f"the p95 of the wait has grown by {added:.2f} s, {added / slice_s:.2f} slices; the limit is 2")
    return 0 if added < 2 * slice_s else 1


if __name__ == "__main__":
    sys.exit(main())
