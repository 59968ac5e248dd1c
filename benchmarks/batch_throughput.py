"""Texts per second of a batch, against the embedder called directly with the same slices, and against single requests.

    uv run python -m benchmarks.batch_throughput [--texts 1500] [--rounds 3] [--batch-size 4]

MiniLM on one thread. In each round first the embedder in a process of its own, without queue or HTTP: on slices of the
texts as they come, and on slices of the texts sorted by length inside each window, packed as the batch packs them. Then
the service runs the same texts as a batch, timed from the moment it is validated until the output file is there. Last,
a request for each text through /v1/embeddings, one at a time and eight at a time.

Exit status 1 when the batch has less than 0.9 of the sorted direct calls' throughput.
"""

import argparse
import multiprocessing
import random
import re
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import psutil

from api.batches.runner.embeddings import Text
from api.batches.runner.packing import Pace, pack
from api.batches.runner.windows import EMBEDDINGS
from benchmarks.batch_client import create, embedding_line, retrieve, text_of, wait_ended
from tests.stack import BASE_ENV, EMBED, Stack, real_models_env

LIMIT = 0.9
SLICE_TOKENS = 4096
SINGLES = 400
SLICE = re.compile(r"request finished .*prompt_ms=(\S+)")
LINE_BYTES = 130  #: of an input line beside its text


class Direct(NamedTuple):
    texts_per_s: float
    slices: int
    slice_s: float  #: the median
    texts_per_cpu_s: float  #: what else the machine does does not change it much


class Batched(NamedTuple):
    texts_per_s: float
    slices_s: list[float]  #: sorted
    busy: float  #: part of the time in which the engine worked on a slice
    texts_per_cpu_s: float  #: of the engine process


def texts_of(count: int, seed: int) -> list[str]:
    """From a heading to half a page."""
    rng = random.Random(seed)
    return [text_of(rng, n, min(300, max(2, round(rng.lognormvariate(3.2, 0.9))))) for n in range(count)]


def windows_of(texts: list[str]) -> list[list[str]]:
    """About as the runner cuts them."""
    windows: list[list[str]] = [[]]
    size = 0
    for text in texts:
        size += len(text) + LINE_BYTES
        if windows[-1] and (size > EMBEDDINGS.bytes or len(windows[-1]) == EMBEDDINGS.lines):
            windows.append([])
            size = len(text) + LINE_BYTES
        windows[-1].append(text)
    return windows


def run_direct(texts: list[str], env: dict[str, str], is_sorted: bool, out: Any) -> None:
    """In a process of its own: the model once loaded is not unloaded in the middle of a measurement."""
    from tasks.engines.llamacpp.embedder import LlamaEmbedder
    from tasks.settings import load_settings

    values: dict[str, Any] = {
        "embedding_gguf_path": env["LIS_EMBEDDING_GGUF_PATH"],
        "embedding_pooling": env["LIS_EMBEDDING_POOLING"],
        "embedding_n_ubatch": int(env["LIS_EMBEDDING_N_UBATCH"]),
        "embedding_batch_size": int(env["LIS_EMBEDDING_BATCH_SIZE"]),
        "n_threads": int(env["LIS_N_THREADS"]),
    }
    embedder = LlamaEmbedder.load(load_settings(**values))
    pace = Pace(SLICE_TOKENS)
    pace.n_ctx, pace.width = embedder.n_ctx, embedder.width
    took: list[float] = []
    began_s, cpu_s = time.monotonic(), time.process_time()
    for window in windows_of(texts):
        left = deque(Text(n, 0, text) for n, text in enumerate(window))
        if is_sorted:
            left = deque(sorted(left, key=lambda item: len(item.text), reverse=True))
        while left:
            part = [item.text for item in pack(left, pace)]
            slice_began_s = time.monotonic()
            result = embedder.embed(part)
            took.append(time.monotonic() - slice_began_s)
            pace.measured(sum(map(len, part)), result.prompt_tokens, took[-1])
    took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    out.send(Direct(len(texts) / took_s, len(took), sorted(took)[len(took) // 2], len(texts) / cpu_s))
    embedder.close()


def direct(texts: list[str], env: dict[str, str], is_sorted: bool) -> Direct:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_direct, args=(texts, env, is_sorted, theirs))
    process.start()
    measured: Direct = ours.recv()
    process.join()
    return measured


def batch(stack: Stack, client: httpx.Client, texts: list[str]) -> Batched:
    """From the end of validation to that of the batch."""
    before, cpu_s = len(SLICE.findall(stack.log_text())), engine_cpu_s(stack)
    batch_id = create(client, [embedding_line(n, text) for n, text in enumerate(texts)])
    while (now := retrieve(client, batch_id)) is None or now["status"] == "validating":
        time.sleep(0.01)
    began_s = time.monotonic()
    ended = wait_ended(client, batch_id, 3600.0, pause_s=0.05)
    took_s = time.monotonic() - began_s
    if ended["request_counts"]["completed"] != len(texts):
        sys.exit(f"the batch ended as {ended}")
    slices_s = sorted(float(ms) / 1000 for ms in SLICE.findall(stack.log_text())[before:])
    per_cpu_s = len(texts) / (engine_cpu_s(stack) - cpu_s)
    return Batched(len(texts) / took_s, slices_s, sum(slices_s) / took_s, per_cpu_s)


def engine_cpu_s(stack: Stack) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in stack.engine_pids()]
    return sum(each.user + each.system for each in times)


def single(client: httpx.Client, texts: list[str], at_once: int) -> float:
    def ask(text: str) -> None:
        client.post("/v1/embeddings", json={"model": EMBED, "input": text}).raise_for_status()

    began_s = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(ask, texts))
    return len(texts) / (time.monotonic() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4, help="LIS_EMBEDDING_BATCH_SIZE")
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    texts = texts_of(given.texts, given.seed)
    env = {**BASE_ENV, **real_models_env(), "LIS_EMBEDDING_BATCH_SIZE": str(given.batch_size)}
    words = sum(len(text.split()) for text in texts) / len(texts)
    print(f"{len(texts)} texts of {words:.0f} words on average; LIS_EMBEDDING_BATCH_SIZE {given.batch_size}")
    with Stack({"LIS_EMBEDDING_BATCH_SIZE": str(given.batch_size)}) as stack, stack.client() as client:
        return measure(stack, client, texts, env, given.rounds)


def measure(stack: Stack, client: httpx.Client, texts: list[str], env: dict[str, str], rounds: int) -> int:
    """In turns, so that what else the machine does falls on all; of each the best round counts."""
    best: dict[str, float] = {}
    for number in range(1, rounds + 1):
        plain, ordered = direct(texts, env, is_sorted=False), direct(texts, env, is_sorted=True)
        batched = batch(stack, client, texts)
        speeds = {"as they come": plain.texts_per_s, "sorted": ordered.texts_per_s, "batch": batched.texts_per_s}
        speeds |= {"sorted, CPU": ordered.texts_per_cpu_s, "batch, CPU": batched.texts_per_cpu_s}
        speeds |= {"as they come, CPU": plain.texts_per_cpu_s, "busy": batched.busy}
        best = {name: max(speed, best.get(name, 0.0)) for name, speed in speeds.items()}
        print(f"round {number}")
        for name, one in (("direct, as they come", plain), ("direct, sorted", ordered)):
            print(
                f"  {name:20} {one.texts_per_s:7.1f} texts/s, {one.texts_per_cpu_s:6.1f} per CPU second, "
                f"{one.slices} slices of {one.slice_s:.2f} s (median)"
            )
        slices_s = batched.slices_s
        print(
            f"  {'batch':20} {batched.texts_per_s:7.1f} texts/s, {batched.texts_per_cpu_s:6.1f} per CPU second, "
            f"{len(slices_s)} slices of "
            f"{slices_s[len(slices_s) // 2]:.2f} s (median), {slices_s[-1]:.2f} s (longest); "
            f"the engine was busy for {batched.busy:.1%} of the time",
            flush=True,
        )
    for at_once in (1, 8):
        alone = single(client, texts[:SINGLES], at_once)
        print(
            f"single requests, {at_once} at once {alone:6.1f} texts/s: the batch has {best['batch'] / alone:.2f} of it"
        )
    ratio = best["batch"] / best["sorted"]
    print(f"sorting gives {best['sorted, CPU'] / best['as they come, CPU']:.2f} of the texts per CPU second without it")
    same = best["batch, CPU"] / best["sorted, CPU"]
    print(
        f"per CPU second of the engine the batch has {same:.3f} of the direct calls' texts; "
        f"the engine is busy for {best['busy']:.1%} of the time"
    )
    print(f"the batch has {ratio:.3f} of the direct calls' throughput; the limit is {LIMIT}")
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
