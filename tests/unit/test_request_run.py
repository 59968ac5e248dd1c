"""What counts as progress of a request: the watchdog (LIS_STALL_TIMEOUT) kills an engine that makes none."""

from collections.abc import Callable, Iterator

import pytest

from tasks.frames import FramePublisher
from tasks.request_run import RequestRun
from tests.unit.test_frame_publisher import FakeRedis


@pytest.fixture
def run() -> Iterator[RequestRun]:
    publisher = FramePublisher(FakeRedis(), lambda request_id: None)  # type: ignore[arg-type]
    yield RequestRun("r1", publisher.open("r1", 1, "api"), publisher, lambda run, ended: None)
    publisher.close()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda run: run.progress(1, 9), id="a chunk of the prompt"),
        pytest.param(lambda run: run.delta("x", 1), id="text"),
        pytest.param(lambda run: run.tool_call(0, 0, "call_1", "f", ""), id="a tool call"),
        pytest.param(lambda run: run.is_cancelled(), id="a batch of texts to embed"),
    ],
)
def test_whatever_the_engine_gets_done_is_progress(run: RequestRun, step: Callable[[RequestRun], object]) -> None:
    run.active_at = 0.0
    step(run)
    assert run.active_at > 0.0


def test_a_cancel_is_no_progress(run: RequestRun) -> None:
    run.active_at = 0.0
    run.cancel()
    assert run.active_at == 0.0
