"""One chat stream: this server (queue, worker, SSE) beside `python -m llama_cpp.server`, same GGUF, threads and window.

    uv run --group bench python -m benchmarks.chat_vs_llama_cpp_server

Both servers run; one is asked at a time, in turns, so that the machine's noise meets both. Each round sends a prompt
that neither has seen (cold prefix) and takes the time to the first text (TTFT) and the tokens per second after it.
Printed are medians and their ratios: decode (ours / theirs, more is better), TTFT (ours / theirs, less is better).
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.stack import BASE_ENV, CHAT, Stack, free_port
from tests.support import wait_until
from tests.support_models import smollm2_path

N_BATCH = 512


@dataclass
class Sample:
    ttft_ms: float
    tokens_per_s: float


@contextlib.contextmanager
def peer(threads: int, n_ctx: int) -> Iterator[str]:
    """`python -m llama_cpp.server` (see llama_cpp_server.py); yields its base URL."""
    port = free_port()
    options = {"model": smollm2_path(), "n_ctx": n_ctx, "n_batch": N_BATCH, "port": port}
    options |= {"n_threads": threads, "n_threads_batch": threads}
    command = [sys.executable, "-m", "benchmarks.llama_cpp_server", "--host", "127.0.0.1"]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            base = f"http://127.0.0.1:{port}"
            wait_until(lambda: _answers(base + "/v1/models"), "llama_cpp.server answers", 120.0)
            yield base
        finally:
            process.terminate()
            process.wait(20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def measure(client: httpx.Client, number: int, words: int, max_tokens: int) -> Sample:
    """One stream. Every chunk with text counts what it covers: one token, or what usage says for merged chunks."""
    topic = " ".join(f"item{number}x{index}" for index in range(words))
    body = {
        "model": CHAT,
        "messages": [{"role": "user", "content": f"Write a very long story with these words: {topic}"}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first = last = 0.0
    chunks = tokens = 0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            if any(choice.get("delta", {}).get("content") for choice in chunk["choices"]):
                last = time.perf_counter()
                first = first or last
                chunks += 1
    return Sample((first - began) * 1000, (max(tokens, chunks) - 1) / (last - first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--words", type=int, default=60, help="length of the prompt; a word is some 5 tokens")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    env = {"LIS_N_THREADS": str(options.threads), "LIS_EMBEDDING_ENABLED": "false"}
    n_ctx = int(BASE_ENV["LIS_N_CTX"])
    samples: dict[str, list[Sample]] = {"local-inference-server": [], "llama_cpp.server": []}
    with contextlib.ExitStack() as all_of:
        stack = all_of.enter_context(Stack(env))
        peer_base = all_of.enter_context(peer(options.threads, n_ctx))
        ours = all_of.enter_context(stack.client())
        theirs = all_of.enter_context(httpx.Client(base_url=peer_base, timeout=120.0))
        clients = dict(zip(samples, (ours, theirs), strict=True))
        for client in clients.values():  # the first request of a process pays for its warm-up
            measure(client, -1, options.words, 16)
        for number in range(options.rounds):
            order = list(clients.items())
            for name, client in order if number % 2 else reversed(order):
                samples[name].append(measure(client, number, options.words, options.max_tokens))
    report(samples)


def report(samples: dict[str, list[Sample]]) -> None:
    print(f"model {Path(smollm2_path()).name}, {len(next(iter(samples.values())))} rounds, medians")
    medians = {}
    for name, taken in samples.items():
        ttft = statistics.median(sample.ttft_ms for sample in taken)
        rate = statistics.median(sample.tokens_per_s for sample in taken)
        medians[name] = (ttft, rate)
        print(f"{name:24} TTFT {ttft:8.1f} ms   decode {rate:7.1f} tokens/s")
    (our_ttft, our_rate), (their_ttft, their_rate) = medians.values()
    print(f"decode ratio {our_rate / their_rate:.3f}   TTFT ratio {our_ttft / their_ttft:.3f}")


if __name__ == "__main__":
    main()
