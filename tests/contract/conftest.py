"""The services that the SDK talks to, and its clients.

In a run of its own under another major version of the SDK the services are those of the run that started it.
"""

import os
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.stack import Stack

#: base URLs and key of running services; unset, the session's own are used
LIVE_BASE, SLOW_BASE, KEY = "CONTRACT_LIVE_BASE", "CONTRACT_SLOW_BASE", "CONTRACT_KEY"
SDK_VERSION = "CONTRACT_SDK_VERSION"  #: of the SDK that is to be tested
TIMEOUT_S = 60.0


class Service(NamedTuple):
    base_url: str
    key: str

    def client(self, timeout_s: float = TIMEOUT_S, max_retries: int = 0) -> OpenAI:
        return OpenAI(base_url=self.base_url, api_key=self.key, timeout=timeout_s, max_retries=max_retries)


def _service(request: pytest.FixtureRequest, variable: str, fixture: str) -> Service:
    base = os.environ.get(variable)
    if base is not None:
        return Service(base + "/v1", os.environ[KEY])
    stack: Stack = request.getfixturevalue(fixture)
    return Service(stack.base + "/v1", stack.key)


@pytest.fixture(scope="session")
def live_service(request: pytest.FixtureRequest) -> Service:
    return _service(request, LIVE_BASE, "live")


@pytest.fixture(scope="session")
def slow_service(request: pytest.FixtureRequest) -> Service:
    return _service(request, SLOW_BASE, "slow_live")


@pytest.fixture
def client(live_service: Service) -> Iterator[OpenAI]:
    with live_service.client() as client:
        yield client


@pytest.fixture
def slow_client(slow_service: Service) -> Iterator[OpenAI]:
    """Never retries by itself."""
    with slow_service.client() as client:
        yield client


@pytest.fixture
async def async_client(live_service: Service) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=live_service.base_url, api_key=live_service.key, timeout=TIMEOUT_S, max_retries=0
    ) as client:
        yield client
