"""Resident memory of the API process while it takes, runs and gives back large batches of embeddings.

    uv run python -m benchmarks.batch_memory [--lines 50000] [--batches 2]

The fake engine. Exit status 1 when the API has grown by more than 150 MiB at any time.
"""

import argparse
import random
import sys
import threading
import time

import httpx
import psutil

from benchmarks.batch_client import create, done_lines, embedding_line, retrieve, text_of, wait_ended
from tests.stack import FAKE_ENV, Stack

MIB = 1024 * 1024
LIMIT_MIB = 150.0


class Watch:
    """Samples a process every 50 ms."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self.highest = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def now(self) -> float:
        """MiB."""
        return float(self._process.memory_info().rss / MIB)

    def peak(self) -> float:
        """Since the last call."""
        peak, self.highest = self.highest, 0.0
        return peak

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self.highest = max(self.highest, self.now())


def download(client: httpx.Client, file_id: str) -> int:
    """Its size in bytes."""
    with client.stream("GET", f"/v1/files/{file_id}/content", timeout=600.0) as answer:
        return sum(len(block) for block in answer.iter_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--batches", type=int, default=2)
    given = parser.parse_args()
    rng = random.Random(1)
    lines = [embedding_line(n, text_of(rng, n, rng.randint(2, 12))) for n in range(given.lines)]
    with Stack(FAKE_ENV, keep=True) as stack, stack.client() as client:
        if stack.api is None:
            return 1
        watch = Watch(stack.api.pid)
        begin = watch.now()
        print(f"{begin:7.1f} MiB before")
        began_s = time.monotonic()
        ids = [create(client, lines) for _ in range(given.batches)]
        highest = watch.peak()
        print(f"{highest:7.1f} MiB at most while {given.batches} files of {given.lines} lines came in")
        while any((now := retrieve(client, i)) is None or not done_lines(now) for i in ids[:1]):
            time.sleep(0.1)
        peak = watch.peak()
        highest = max(highest, peak)
        print(f"{peak:7.1f} MiB at most while the first was validated")
        ended = [wait_ended(client, batch_id, 1800.0, pause_s=0.5) for batch_id in ids]
        peak = watch.peak()
        highest = max(highest, peak)
        total = sum(batch["request_counts"]["completed"] for batch in ended)
        took_s = time.monotonic() - began_s
        print(f"{peak:7.1f} MiB at most while they ran: {total} lines in {took_s:.0f} s, {total / took_s:.0f} a second")
        size = sum(download(client, batch["output_file_id"]) for batch in ended)
        peak = watch.peak()
        highest = max(highest, peak)
        print(f"{peak:7.1f} MiB at most while {size / MIB:.0f} MiB of output were read")
        print(
            f"{watch.now():7.1f} MiB at the end; it had grown by {highest - begin:.1f} MiB; "
            f"the limit is {LIMIT_MIB:.0f}"
        )
        watch.stop()
    return 0 if highest - begin < LIMIT_MIB and total == given.lines * given.batches else 1


if __name__ == "__main__":
    sys.exit(main())
