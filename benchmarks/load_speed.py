"""How fast tokens go from the engine to the clients (benchmarks/load_queue.py)."""

from statistics import median, quantiles
from typing import Any

from benchmarks.load_client import Clients, Report
from tests.stack import CHAT, FAKE_ENV, Stack

STREAMS = 32
TOKENS_EACH = 50_000
MIN_TOKENS_PER_S = 100_000
RUNS = 3
LATENCY_TOKENS = 500
MAX_DELAY_MS = 1.0
QUIET = {**FAKE_ENV, "LIS_EMBEDDING_ENABLED": "false"}


def streaming_body(text: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": CHAT,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def small_body() -> dict[str, Any]:
    return {"model": CHAT, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def tokens() -> list[str]:
    """Flat out: `bulk` puts 64 tokens at a time, as the fake engine does when a token takes no time; `each` one."""
    breaches = []
    for name, token_s in (("bulk", "0"), ("each", "0.000001")):
        best = max((_flood(token_s) for _ in range(RUNS)), key=_rate)
        print(
            f"  {name}: {_rate(best):,.0f} tokens/s over {STREAMS} streams"
            f" ({best.completion_tokens:,} by usage, {best.words:,} words, {best.received_bytes / 1e6:.1f} MB,"
            f" longest silence of a stream {best.silence_s * 1000:.0f} ms)"
        )
        wanted = STREAMS * TOKENS_EACH
        if not best.completion_tokens == best.words == wanted:
            breaches.append(f"{name}: {wanted} tokens were to come")
        if _rate(best) < MIN_TOKENS_PER_S:
            breaches.append(f"{name}: fewer than {MIN_TOKENS_PER_S:,} tokens/s")
    return breaches


def _rate(report: Report) -> float:
    return report.completion_tokens / report.took_s


def _flood(token_s: str) -> Report:
    size = {"LIS_PARALLEL": str(STREAMS), "LIS_N_CTX": "65536", "LIS_MAX_MODEL_LENGTH": "60000"}
    with Stack({**QUIET, **size, "LIS_FAKE_TOKEN": token_s}) as stack, Clients(stack.port, stack.key) as clients:
        clients.start("warm", STREAMS, streaming_body("Hello", 8))
        clients.wait("warm", 20.0)
        clients.start("all", STREAMS, streaming_body("Never stop", TOKENS_EACH))
        return clients.wait("all", 120.0)


def latency() -> list[str]:
    with Stack({**QUIET, "LIS_FAKE_TOKEN": "0.02"}) as stack, Clients(stack.port, stack.key) as clients:
        clients.start("warm", 1, streaming_body("Hello", 8))
        clients.wait("warm", 20.0)
        clients.start("one", 1, streaming_body("FAKE-CLOCK Never stop", LATENCY_TOKENS), is_timed=True)
        report = clients.wait("one", 60.0)
    delays = sorted(report.delays_ms)
    if len(delays) < LATENCY_TOKENS - 1:
        return [f"{len(delays)} of {LATENCY_TOKENS} tokens came"]
    p50, p95 = median(delays), quantiles(delays, n=20)[-1]
    print(f"  {len(delays)} tokens, 50 a second: p50 {p50:.2f} ms, p95 {p95:.2f} ms, max {delays[-1]:.2f} ms")
    return [f"the median is over {MAX_DELAY_MS} ms"] if p50 > MAX_DELAY_MS else []
