"""One supervised process: broker, worker or API."""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
MAX_BACKOFF_S = 30.0
QUICK_DEATH_S = 20.0
LAST_LINES = 20


class Part:
    """Runs a command in a session of its own (Ctrl-C reaches the supervisor only) that dies with the supervisor.

    `on_line(name, line)` gets what it prints.
    """

    def __init__(self, name: str, command: list[str], env: dict[str, str], on_line: Callable[[str, str], None]) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._born = 0.0
        self._backoff_s = 0.0
        self.last_lines: list[str] = []

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        self._born = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=os.environ | self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            limit=1 << 20,
        )
        self._reader = asyncio.create_task(self._read())

    async def wait(self) -> int:
        """Its exit code, once it has ended and all it printed has been passed on."""
        assert self._process is not None and self._reader is not None
        code = await self._process.wait()
        # its own children may hold the pipe open a little longer
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reader), 1.0)
        return code

    def restart_delay_s(self) -> float:
        """Back-off: 0 after a long life, else 0.5, 1, 2 .. 30 s."""
        if time.monotonic() - self._born > QUICK_DEATH_S:
            self._backoff_s = 0.0
            return 0.0
        delay_s = self._backoff_s
        self._backoff_s = min(MAX_BACKOFF_S, self._backoff_s * 2 or 0.5)
        return delay_s

    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL to its whole session when it takes longer than `timeout_s`."""
        if self._process is None:
            return
        self.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), max(0.0, timeout_s))
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()

    def _signal(self, number: int) -> None:
        if self.is_running():
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            text = line.decode("utf-8", "replace").rstrip()
            self.last_lines = [*self.last_lines[-LAST_LINES:], text]
            self._on_line(self.name, text)


def _die_with_parent() -> None:
    """In the child, before exec: SIGTERM when the supervisor is gone, even by SIGKILL. Does nothing but on Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
