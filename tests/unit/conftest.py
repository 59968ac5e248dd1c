"""The app with an in-memory queue, for the route tests."""

import pytest
from pydantic import SecretStr
from quart.typing import TestClientProtocol as Client

from api.app import create_app
from tests.unit.fake_jobs import FakeJobs
from tests.unit.routes_support import settings


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


@pytest.fixture
def client(jobs: FakeJobs) -> Client:
    return create_app(settings(), jobs).test_client()


@pytest.fixture
def locked(jobs: FakeJobs) -> Client:
    """As `client`, with the API key `key`."""
    return create_app(settings(api_key=SecretStr("key")), jobs).test_client()
