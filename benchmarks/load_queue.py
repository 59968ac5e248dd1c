"""The service under load, with the fake engine: what the queue promises of memory, speed and Redis.

    uv run python -m benchmarks.load_queue [waiting full tokens latency slow redis maxmemory]

- waiting: 1,000 requests wait and 32 stream: no error, at most 20 KiB of the API's memory for each, all of it undone
- full: the same with the default bound of the queue: what does not fit gets an honest 503
- tokens: at least 100,000 tokens/s over 32 streams, counted by usage and by the words in the texts
- latency: what the way from the engine to the client adds to a token of one stream of 50 tokens/s: at most 1 ms
- slow: 8 clients that read 1 byte/s among 24 fast ones: those are as fast as alone, and memory is bounded
- redis: every key has a TTL, and memory is flat over 20,000 requests
- maxmemory: Redis is full: 503s, and all is well when it is not any more

Prints the figures; exits with 1 on any breach. With no part named it runs all.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

from benchmarks import load_memory, load_redis, load_speed

PARTS: dict[str, Callable[[], list[str]]] = {
    "waiting": load_memory.waiting,
    "full": load_memory.full,
    "slow": load_memory.slow,
    "tokens": load_speed.tokens,
    "latency": load_speed.latency,
    "redis": load_redis.flat,
    "maxmemory": load_redis.full,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all when none is named")
    breaches = []
    for name in parser.parse_args().parts or PARTS:
        began_s = time.monotonic()
        print(f"{name} (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)", flush=True)
        found = PARTS[name]()
        breaches += [f"{name}: {breach}" for breach in found]
        print(f"  {'BREACH' if found else 'ok'} in {time.monotonic() - began_s:.0f} s", flush=True)
    print("\n".join(breaches))
    sys.exit(bool(breaches))


if __name__ == "__main__":
    main()
