import threading

import pytest

from tasks.engines.base import Cancelled
from tasks.interruptible import run_interruptibly


def test_results_and_errors_pass_through() -> None:
    assert run_interruptibly(lambda _: 7, lambda: False) == 7
    with pytest.raises(ZeroDivisionError):
        run_interruptibly(lambda _: 1 // 0, lambda: False)


def test_a_stop_leaves_work_that_cannot_be_interrupted_and_tells_it() -> None:
    never, told = threading.Event(), threading.Event()

    def work(stop: threading.Event) -> None:
        never.wait(5)
        if stop.is_set():
            told.set()

    with pytest.raises(Cancelled):
        run_interruptibly(work, lambda: True)
    never.set()
    assert told.wait(5)


def test_work_that_runs_when_the_caller_is_interrupted_is_told_to_end() -> None:
    told = threading.Event()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    def work(stop: threading.Event) -> None:
        stop.wait(5)
        told.set()

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work, interrupt)
    assert told.wait(5)
