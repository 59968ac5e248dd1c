"""Clients of the services that many tests share (tests/conftest.py)."""

from collections.abc import Iterator

import pytest

from tests.service_calls import Service
from tests.stack import Stack


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
