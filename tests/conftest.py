"""Services that many tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.stack import FAKE_ENV, Stack
from tests.support_models import tiny_llama_path

# the same examples in every run, and no failure because the machine is slow
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


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


@pytest.fixture(scope="session")
def slow_live() -> Iterator[Stack]:
    """The fake engine at 20 tokens a second, 2 s for a prompt of more than 200; a request waits 2 s at most."""
    pace = {"LIS_FAKE_TOKEN": "0.05", "LIS_FAKE_PREFILL": "2.0", "LIS_BUSY_TIMEOUT": "2"}
    with Stack({**FAKE_ENV, **pace}, keep=True) as stack:
        yield stack


@pytest.fixture(scope="session")
def tiny_live() -> Iterator[Stack]:
    """llama.cpp with a model that writes nonsense, fast: for what must hold of any text. A window of 1024 tokens."""
    model = {"LIS_GGUF_PATH": str(tiny_llama_path()), "LIS_N_CTX": "1024", "LIS_EMBEDDING_ENABLED": "false"}
    with Stack(model, keep=True) as stack:
        yield stack
