"""Clients of the services that many tests share (tests/conftest.py)."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.chat_client import wait_idle
from tests.service_calls import Service
from tests.stack import FAKE_ENV, Stack

SERVICES = ("real", "fake", "slow", "tiny", "frail")  #: fixtures that are a service


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


#: What queue belongs to which exchange: Celery's (kombu 5.7), without a TTL. It writes one entry for each queue of a
#: worker, sweeps out those of control and event queues when they expire, and never holds a message in them.
KOMBU_BINDINGS = b"_kombu.binding"


def keys_without_ttl(client: Any) -> list[bytes]:
    return [key for key in client.scan_iter(count=1000) if client.ttl(key) == -1 and not key.startswith(KOMBU_BINDINGS)]


@pytest.fixture
def keys_have_ttl(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the test, when all is idle: what is in the brokers of its services goes away by itself."""
    services = [request.getfixturevalue(name) for name in request.fixturenames if name in SERVICES]
    stacks = [getattr(service, "stack", service) for service in services]
    yield
    for stack in stacks:
        wait_idle(stack)
        with stack.redis() as client:
            assert keys_without_ttl(client) == []


@pytest.fixture
def empty_broker(broker: Stack) -> None:
    with broker.redis() as client:
        client.flushall()


@pytest.fixture
def key() -> str:
    """An idempotency key that no other test has."""
    return secrets.token_hex(8)
