"""Decode rate with and without a JSON schema, in this process, on the SmolLM2 demo model.

    uv run python -m benchmarks.grammar_decode_rate

Each round decodes the same number of tokens both ways, in turns, so that the machine's noise meets both. Neither answer
can end before `--max-tokens`: free text ignores the end of generation, and the schema demands more strings than fit.
Printed are medians in tokens per second and their ratio (with / without, 1 is best), by the clock and by the process's
CPU time. On a busy machine the latter says more, with `--threads 1`: threads that wait for each other take CPU time.
"""

import argparse
import json
import statistics
import threading
import time
from typing import Any, NamedTuple

from tasks.contracts import FinishReason, GenerateRequest, Grammar, GrammarKind, Sampling, Timings, Usage
from tasks.engines import load_engines
from tasks.engines.base import ChatEngine, EngineError
from tasks.settings import load_settings
from tests.support_models import smollm2_path

SCHEMA = {
    "type": "object",
    "properties": {
        "cities": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
                    "climate": {"enum": ["dry", "mild", "wet"]},
                    "sights": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 3},
                },
                "required": ["name", "people", "climate", "sights"],
                "additionalProperties": False,
            },
            "minItems": 200,
        }
    },
    "required": ["cities"],
    "additionalProperties": False,
}


class TimingSink:
    """Keeps the timings of one request."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.timings = Timings()
        self.error: EngineError | None = None

    def progress(self, done: int, total: int) -> None:
        """Not of interest."""

    def delta(self, *_: Any, **__: Any) -> None:
        """Not of interest."""

    def tool_call(self, *_: Any) -> None:
        """Not of interest."""

    def choice_finished(self, *_: Any) -> None:
        """Not of interest."""

    def finished(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        self.timings = timings
        self.ended.set()

    def failed(self, error: EngineError) -> None:
        self.error = error
        self.ended.set()

    def cancelled(self, usage: Usage) -> None:
        self.ended.set()


class Rate(NamedTuple):
    """Tokens per second."""

    clock: float  #: after the prompt
    cpu: float  #: of CPU time, the prompt's last two tokens included: the rest is kept from the warm-up


def measure(engine: ChatEngine, max_tokens: int, seed: int, grammar: Grammar | None) -> Rate:
    sink = TimingSink()
    request = GenerateRequest(
        id="benchmark",
        model="",
        reply_to="",
        messages=[{"role": "user", "content": "List the cities of Europe with what is to be seen there."}],
        max_tokens=max_tokens,
        sampling=Sampling(seed=seed, ignore_eos=True),
        grammar=grammar,
    )
    began_s = time.process_time()
    engine.submit(request, sink)
    sink.ended.wait()
    cpu_s = time.process_time() - began_s
    if sink.error:
        raise sink.error
    if sink.timings.predicted_n != max_tokens:
        raise RuntimeError(f"the answer ended after {sink.timings.predicted_n} of {max_tokens} tokens")
    return Rate((max_tokens - 1) * 1000 / sink.timings.predicted_ms, max_tokens / cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    settings = load_settings(
        gguf_path=str(smollm2_path()), embedding_enabled=False, n_threads=options.threads, n_ctx=1024, n_gpu_layers=0
    )
    engine = load_engines(settings, lambda line: None).chat
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA))
    ways: dict[str, Grammar | None] = {"without a grammar": None, "with a JSON schema": grammar}
    rates: dict[str, list[Rate]] = {name: [] for name in ways}
    for seed in range(options.rounds + 1):  # the first round warms up
        for name, wanted in ways.items():
            measured = measure(engine, options.max_tokens, seed, wanted)
            if seed:
                rates[name].append(measured)
    engine.close()
    for kind in Rate._fields:
        free, kept = ([getattr(rate, kind) for rate in measured] for measured in rates.values())
        for name, values in (("without a grammar", free), ("with a JSON schema", kept)):
            print(
                f"{kind:5} {name:20} {statistics.median(values):7.1f} tok/s  ({min(values):.1f} to {max(values):.1f})"
            )
        of_rounds = statistics.median(one / other for one, other in zip(kept, free, strict=True))
        print(
            f"{kind:5} ratio of medians {statistics.median(kept) / statistics.median(free):.3f}, "
            f"median of the rounds' ratios {of_rounds:.3f}, ratio of the best {max(kept) / max(free):.3f}"
        )


if __name__ == "__main__":
    main()
