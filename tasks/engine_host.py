"""The worker's side of the engine process: start it, hand it requests, watch it, start it again when it dies."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from tasks.contracts import EmbedRequest, ErrorCode, GenerateRequest, ModelInfo, WorkerStatus
from tasks.ended import LOST, Ended
from tasks.settings import Settings

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 3.0  #: an engine that does not end by itself in this time is killed
QUICK_DEATH_S = 10.0  #: an engine that dies younger than this is started again with back-off
MAX_BACKOFF_S = 30.0


class EngineFailed(Exception):
    """The models cannot be loaded. `str()` is one clear line."""


class EngineHost:
    """Owns the engine process. All methods may be called from any thread.

    `on_state(status, message)` is called on the host's own thread whenever the state changes.
    """

    def __init__(
        self,
        settings: Settings,
        worker: str,
        boot_id: str,
        redis_url: str,
        on_state: Callable[[WorkerStatus, str], None],
    ) -> None:
        self._settings = settings
        self._hello = msgspec.msgpack.encode([worker, boot_id, redis_url])
        self._on_state = on_state
        self._cond = threading.Condition()
        self._conn: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[str, Ended | None] = {}  #: by request id; None while it runs
        self._ready = False
        self._failure: str | None = None
        self._stopping = False
        self.models: list[ModelInfo] = []
        self._thread = threading.Thread(target=self._run, name="engine-host", daemon=True)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None else None

    def start(self) -> None:
        self._thread.start()

    def wait_ready(self, poll: Callable[[], None], interval_s: float = 0.2) -> None:
        """Return when the models are loaded. `poll` is called now and then and may raise to give up.

        Raises EngineFailed when they cannot be loaded.
        """
        while True:
            with self._cond:
                if self._failure is not None:
                    raise EngineFailed(self._failure)
                if self._ready:
                    return
                self._cond.wait(interval_s)
            poll()

    def run(self, kind: str, request: GenerateRequest | EmbedRequest) -> Ended:
        """Have the engine run it (`run` or `embed`); block until it has ended."""
        with self._cond:
            if not self._ready or self._conn is None:
                return Ended(LOST)
            self._pending[request.id] = None
            self._send([kind, msgspec.to_builtins(request)])
            while self._pending[request.id] is None:
                self._cond.wait()
            ended = self._pending.pop(request.id)
            self._cond.notify_all()
            assert ended is not None
            return ended

    def wait_idle(self, timeout_s: float) -> None:
        """Return when nothing runs, or after `timeout_s`."""
        with self._cond:
            self._cond.wait_for(lambda: not self._pending, timeout_s)

    def running_ids(self) -> list[str]:
        with self._cond:
            return list(self._pending)

    def fail_all(self, code: ErrorCode, message: str) -> None:
        """End what runs with an error frame."""
        with self._cond:
            if self._conn is not None:
                self._send(["fail_all", code.value, message])

    def stop(self) -> None:
        """End the engine process; kill it if it does not end within STOP_TIMEOUT_S."""
        with self._cond:
            self._stopping = True
            if self._conn is not None:
                self._send(["stop"])
            self._cond.notify_all()
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    # -- the host's own thread ---------------------------------------------------------------------

    def _run(self) -> None:
        """Load failures end it only at the start. Later the models are known to be good, and trying again may help."""
        backoff_s = 0.0
        while not self._stopping:
            born = time.monotonic()
            self._spawn()
            self._read_until_death()
            if self._stopping or self._failure is not None:
                return
            backoff_s = min(MAX_BACKOFF_S, max(1.0, backoff_s * 2)) if time.monotonic() - born < QUICK_DEATH_S else 0.0
            with self._cond:
                self._cond.wait_for(lambda: self._stopping, backoff_s)

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        env = os.environ | self._settings.to_env()
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "tasks.engine_process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=env,
        )
        theirs.close()
        conn = Connection(ours.detach())
        conn.send_bytes(self._hello)
        with self._cond:
            self._process, self._conn = process, conn
        self._on_state(WorkerStatus.LOADING, "loading the models")
        log.info("engine process started", extra={"pid": process.pid})

    def _read_until_death(self) -> None:
        conn, process = self._conn, self._process
        assert conn is not None and process is not None
        while True:
            try:
                # the engine speaks every 0.5 s once it is loaded; silence means that it cannot even run Python
                if not conn.poll(self._settings.stall_timeout_s if self._ready else None):
                    self._kill(process, "it does not answer")
                    break
                message = msgspec.msgpack.decode(conn.recv_bytes())
                self._handle(message, process)
            except (EOFError, OSError):
                break
            except Exception:  # nobody would ever hear of what runs there
                log.exception("a message of the engine process was not understood")
                self._kill(process, "it cannot be understood")
                break
        code = process.wait()
        with self._cond:
            lost = [request_id for request_id, ended in self._pending.items() if ended is None]
            self._pending |= dict.fromkeys(lost, Ended(LOST))
            self._ready = False
            self._conn = None
            conn.close()
            self._cond.notify_all()
        if not self._stopping and self._failure is None:
            log.error("engine process died", extra={"pid": process.pid, "exit_code": code, "requests": ",".join(lost)})
            self._on_state(WorkerStatus.LOADING, "the engine died and is started again")

    def _handle(self, message: list[Any], process: "subprocess.Popen[bytes]") -> None:
        match message:
            case ["state", text]:
                self._on_state(WorkerStatus.LOADING, text)
            case ["ready", *models]:
                with self._cond:
                    self.models = [msgspec.convert(model, ModelInfo) for model in models]
                    self._ready = True
                    self._cond.notify_all()
                self._on_state(WorkerStatus.READY, "")
                log.info("models ready", extra={"models": ",".join(model.id for model in self.models)})
            case ["failed", text] if self.models:
                log.error("the models cannot be loaded again: %s", text)
            case ["failed", text]:
                with self._cond:
                    self._failure = text
                    self._cond.notify_all()
                self._on_state(WorkerStatus.FAILED, text)
            case ["alive", stalled_s]:
                if stalled_s > self._settings.stall_timeout_s:
                    self._kill(process, f"a request has made no progress for {stalled_s:.0f} s")
            case ["ended", request_id, ended]:
                with self._cond:
                    if request_id in self._pending:
                        self._pending[request_id] = msgspec.convert(ended, Ended)
                        self._cond.notify_all()

    def _kill(self, process: "subprocess.Popen[bytes]", why: str) -> None:
        log.error("engine process killed: %s", why, extra={"pid": process.pid})
        process.kill()

    def _send(self, message: list[Any]) -> None:
        """Under the lock. A dead child is noticed by the reader, which also settles the request."""
        assert self._conn is not None
        try:
            self._conn.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            log.warning("engine process is gone")
