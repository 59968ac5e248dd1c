"""Lets threads use a thing until it is closed, and closes it when none does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.engines.base import EngineError


class Gate:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_users = 0
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[None]:
        """Raises EngineError once the gate is closed."""
        with self._changed:
            if self._closed:
                raise EngineError("The engine is shutting down.")
            self._n_users += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_users -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more; return when nobody is inside."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._n_users)
