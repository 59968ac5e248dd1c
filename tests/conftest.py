"""Services that many tests share."""

from collections.abc import Iterator

import pytest

from tests.stack import FAKE_ENV, Stack


@pytest.fixture(scope="session")
def live() -> Iterator[Stack]:
    """The service with both real demo models, one for the whole run. Tests must leave it idle."""
    with Stack(keep=True) as stack:
        yield stack


@pytest.fixture(scope="session")
def fake_live() -> Iterator[Stack]:
    """The same with the fake engine: fast, and slow on demand."""
    with Stack(FAKE_ENV, keep=True) as stack:
        yield stack
