"""Clients of the services that many tests share (tests/conftest.py)."""

from collections.abc import Iterator

import pytest

from tests.integration.chat_client import wait_idle
from tests.service_calls import Service
from tests.stack import FAKE_ENV, Stack


def _client_of(stack: Stack) -> Iterator[Service]:
    service = Service(stack)
    yield service
    service.client.close()


@pytest.fixture(scope="session")
def real(live: Stack) -> Iterator[Service]:
    """Both real demo models."""
    yield from _client_of(live)


@pytest.fixture(scope="session")
def fake(fake_live: Stack) -> Iterator[Service]:
    """The fake engine, flat out."""
    yield from _client_of(fake_live)


@pytest.fixture(scope="session")
def slow(slow_live: Stack) -> Iterator[Service]:
    """The fake engine at 20 tokens a second; a request waits 2 s at most."""
    yield from _client_of(slow_live)


@pytest.fixture(scope="session")
def tiny(tiny_live: Stack) -> Iterator[Service]:
    """llama.cpp with a model that writes nonsense, fast; no embedding model."""
    yield from _client_of(tiny_live)


@pytest.fixture(scope="module")
def broker() -> Iterator[Stack]:
    """A running broker, no worker and no API."""
    stack = Stack(FAKE_ENV)
    try:
        stack.start_broker()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="session")
def frail_service() -> Iterator[Stack]:
    """Slow enough to be hit in any phase, patient enough for a worker that starts anew."""
    pace = {"LIS_FAKE_TOKEN": "0.05", "LIS_FAKE_PREFILL": "2.0", "LIS_BUSY_TIMEOUT": "60"}
    with Stack({**FAKE_ENV, **pace, "LIS_STALL_TIMEOUT": "3", "LIS_DRAIN_TIMEOUT": "5"}, keep=True) as stack:
        yield stack


@pytest.fixture
def frail(frail_service: Stack) -> Iterator[Stack]:
    """A service to break: ready and idle, before and after."""
    frail_service.wait_ready()
    wait_idle(frail_service)
    yield frail_service
    frail_service.wait_ready()
    wait_idle(frail_service)
