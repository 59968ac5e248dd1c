"""Reported bugs of long runs: memory. An engine that hangs (OPS-03): test_faults.py, test_deaths.py."""

import random
from collections.abc import Iterator

import psutil
import pytest

from tests.integration.chat_client import wait_idle
from tests.service_calls import Service

MIB = 1024 * 1024
WARM_UP, MEASURED = 40, 160
GROWTH_BYTES = 15 * MIB  #: a leak of 1.4 MB a request, as was reported, would be 200


@pytest.fixture(params=["fake", "tiny"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """The fake engine, and llama.cpp."""
    yield request.getfixturevalue(request.param)


def test_memory_of_api_and_engine_stays_after_unique_prompts(service: Service) -> None:
    """OPS-01: whole answers, with logprobs or without, streams, and streams that were left."""
    assert service.stack.api is not None
    (engine,) = service.stack.engine_pids()
    processes = [psutil.Process(pid) for pid in (service.stack.api.pid, engine)]
    rng = random.Random(5)

    def one(number: int) -> None:
        said = f"Unique {rng.random()} say hello {number}."
        if number % 3 == 0:
            assert service.chat_stream(said, max_tokens=8).is_done
        elif number % 10 == 1:
            with service.opened_stream(said, max_tokens=500) as lines:
                next(lines)
        else:
            service.chat(said, max_tokens=8, logprobs=number % 3 == 1, top_logprobs=2 if number % 3 == 1 else None)

    for number in range(WARM_UP):
        one(number)
    before = [process.memory_info().rss for process in processes]
    for number in range(MEASURED):
        one(number)
    wait_idle(service.stack)
    after = [process.memory_info().rss for process in processes]
    assert [new - old for new, old in zip(after, before, strict=True) if new - old > GROWTH_BYTES] == []
