"""The progress bar: texts done, their rate, the time that is left. On a terminal; else a line now and then."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_EVERY_S = 30.0


class RateColumn(ProgressColumn):
    def render(self, task: Any) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="progress.data.speed")


class Bar:
    """Counts texts."""

    def __init__(self, total: int, done: int = 0, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            RateColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=60.0,
        )
        self._task = self._progress.add_task("embedding", total=total, completed=done)
        self._total = total
        self._first = self._done = done
        self._began_s = self._said_s = time.monotonic()

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, done: int, state: str) -> None:
        """`state` is a word or two on what the server does."""
        self._done = max(done, self._done)
        self._progress.update(self._task, completed=self._done, description=state)
        now_s = time.monotonic()
        if not self.console.is_terminal and now_s - self._said_s >= LINE_EVERY_S:
            self._said_s = now_s
            self.say(f"{state}: {self._done:,} of {self._total:,}, {self._rate(now_s):,.0f}/s")

    def begin_at(self, done: int) -> None:
        """What an earlier run has done is not counted in the rate."""
        self._first = self._done = done
        self._began_s = time.monotonic()
        self._progress.reset(self._task, completed=done)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def summary(self, failed: int) -> str:
        seconds = time.monotonic() - self._began_s
        made = self._total - failed
        rate = self._rate(time.monotonic())
        return f"{made:,} of {self._total:,} texts embedded in {seconds:,.1f} s ({rate:,.0f}/s)"

    def _rate(self, now_s: float) -> float:
        return (self._done - self._first) / max(1e-9, now_s - self._began_s)
