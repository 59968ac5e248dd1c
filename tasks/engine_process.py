"""The spawned child of a Celery worker that holds both models.

A process of its own, because llama.cpp aborts on a failed assertion, CUDA does not survive a fork, and a hung decode
can only be killed. It publishes frames to Redis itself, so that no token takes another hop. The worker talks to it
over a socket pair (tasks/engine_host.py); when that closes the worker is dead: the child tells its clients and ends.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from tasks.contracts import (
    EmbedRequest,
    ErrorCode,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Started,
    Timings,
    Usage,
    Vectors,
)
from tasks.control import ControlListener
from tasks.ended import Ended
from tasks.engines import Engines, load_engines
from tasks.engines.base import Cancelled, DecodeFailed, EngineError, ModelLoadError
from tasks.frames import FramePublisher, sync_redis
from tasks.log import configure_logging
from tasks.outbox import KeptOutbox
from tasks.queries import QueryDesk
from tasks.request_run import RequestRun
from tasks.settings import Settings, load_settings

log = logging.getLogger(__name__)

ALIVE_INTERVAL_S = 0.5
INTERNAL_ERROR = "The engine failed on this request. The server's log says why."


class EngineProcess:
    """Reads run, embed, fail_all and stop from the worker; answers state, ready, failed, alive, ended."""

    def __init__(self, conn: Connection, settings: Settings, worker: str, boot_id: str, url: str) -> None:
        self._conn = conn
        self._send_lock = threading.Lock()
        self._settings = settings
        self._worker = worker
        self._boot_id = boot_id
        self._publisher = FramePublisher(sync_redis(url), self._cancel)
        self._queries = QueryDesk(sync_redis(url))
        self._control = ControlListener(
            sync_redis(url), worker, self._cancel, self._resend, self._running_ids, self._queries.put
        )
        self._runs: dict[str, RequestRun] = {}
        self._cancelled_early: deque[str] = deque(maxlen=1000)  #: a cancel may overtake its request
        self._runs_lock = threading.Lock()
        self._engines: Engines | None = None
        self._stopped = threading.Event()

    def serve(self) -> None:
        """Load, then serve until the worker says `stop` or is gone."""
        threading.Thread(target=self._read, name="worker-reader", daemon=True).start()
        try:
            self._engines = load_engines(self._settings, lambda message: self._send("state", message))
        except ModelLoadError as exc:
            self._send("failed", str(exc))
            return
        self._queries.start(self._engines.chat)
        self._control.start()
        self._send("ready", *(msgspec.to_builtins(info) for info in self._models(self._engines)))
        while not self._stopped.wait(ALIVE_INTERVAL_S):
            self._send("alive", self._stalled_s())
        if self._engines.embedding is not None:  # before chat: it frees its context on chat's decode thread
            self._engines.embedding.close()
        self._engines.chat.close()
        self._publisher.close()

    def _models(self, engines: Engines) -> list[ModelInfo]:
        models = [
            ModelInfo(
                id=self._settings.model_alias,
                kind="chat",
                n_ctx=engines.chat.n_ctx,
                created=_mtime(self._settings.gguf_path),
            )
        ]
        if engines.embedding is not None:
            models.append(
                ModelInfo(
                    id=self._settings.embedding_model_alias,
                    kind="embedding",
                    n_ctx=engines.embedding.n_ctx,
                    width=engines.embedding.width,
                    created=_mtime(self._settings.embedding_gguf_path),
                )
            )
        return models

    def _stalled_s(self) -> float:
        """How long the longest-silent running request has made no progress; 0 when nothing runs."""
        now = time.monotonic()
        with self._runs_lock:
            return max((now - run.active_at for run in self._runs.values()), default=0.0)

    # -- the worker's side -------------------------------------------------------------------------

    def _send(self, *message: Any) -> None:
        try:
            with self._send_lock:
                self._conn.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            self._worker_gone()

    def _read(self) -> None:
        while True:
            try:
                message = msgspec.msgpack.decode(self._conn.recv_bytes())
            except (EOFError, OSError):
                return self._worker_gone()
            if message[0] == "run":
                self._start_generation(msgspec.convert(message[1], GenerateRequest))
            elif message[0] == "embed":
                request = msgspec.convert(message[1], EmbedRequest)
                threading.Thread(target=self._embed, args=(request,), name=request.id, daemon=True).start()
            elif message[0] == "fail_all":
                self._fail_all(ErrorCode(message[1]), message[2])
            elif message[0] == "stop":
                self._stopped.set()

    def _worker_gone(self) -> None:
        """Tell the clients at once, then end: models without a worker serve nobody."""
        if not self._stopped.is_set():
            self._fail_all(ErrorCode.WORKER_LOST, "The worker that ran this request was lost.")
            self._publisher.close(timeout_s=2.0)
        os._exit(1)

    def _fail_all(self, code: ErrorCode, message: str) -> None:
        with self._runs_lock:
            runs = list(self._runs.values())
        for run in runs:
            run.fail(code, message)
            run.cancel()

    # -- requests ----------------------------------------------------------------------------------

    def _open(self, request: GenerateRequest | EmbedRequest) -> RequestRun:
        outbox = (
            self._publisher.open(request.id, request.attempt, request.reply_to)
            if request.reply_to
            else KeptOutbox(request.id, request.attempt)
        )
        run = RequestRun(request.id, outbox, self._publisher, self._ended)
        with self._runs_lock:
            self._runs[request.id] = run
            is_cancelled = request.id in self._cancelled_early
        if is_cancelled:
            run.cancel()
        return run

    def _start_generation(self, request: GenerateRequest) -> None:
        assert self._engines is not None
        run = self._open(request)
        with run.lock:  # no frame of the decode thread may overtake `started`
            try:
                run.ticket = self._engines.chat.submit(request, run)
            except EngineError as exc:
                run.failed(exc)
                return
            except Exception:  # the reader's thread must live on
                log.exception("request not accepted", extra={"request_id": request.id})
                run.failed(DecodeFailed(INTERNAL_ERROR))
                return
            run.outbox.put(Started, self._worker, self._boot_id)
        if run.is_cancelled():
            run.cancel()
        log.info("generation started", extra={"request_id": request.id})

    def _embed(self, request: EmbedRequest) -> None:
        assert self._engines is not None and self._engines.embedding is not None
        run = self._open(request)
        run.outbox.put(Started, self._worker, self._boot_id)
        log.info("embedding started", extra={"request_id": request.id})
        began = time.monotonic()
        try:
            result = self._engines.embedding.embed(request.texts, run.is_cancelled)
        except Cancelled:
            run.cancelled(Usage())
        except EngineError as exc:
            run.failed(exc)
        except Exception:
            log.exception("embedding failed", extra={"request_id": request.id})
            run.failed(DecodeFailed(INTERNAL_ERROR))
        else:
            ms = (time.monotonic() - began) * 1000
            run.outbox.put(
                Vectors,
                int(result.vectors.shape[1]),
                result.vectors.astype("<f4").tobytes(),
                result.truncated,
                list(result.tokens),
            )
            run.finished(
                FinishReason.STOP,
                Usage(prompt_tokens=result.prompt_tokens),
                Timings(prompt_n=result.prompt_tokens, prompt_ms=ms),
            )

    def _ended(self, run: RequestRun, ended: Ended) -> None:
        with self._runs_lock:
            self._runs.pop(run.request_id, None)
        if isinstance(run.outbox, KeptOutbox):
            ended = msgspec.structs.replace(ended, kept=run.outbox.kept)
        self._send("ended", run.request_id, msgspec.to_builtins(ended))

    def _running_ids(self) -> list[str]:
        with self._runs_lock:
            return list(self._runs)

    def _cancel(self, request_id: str) -> None:
        with self._runs_lock:
            run = self._runs.get(request_id)
            if run is None:
                self._cancelled_early.append(request_id)
        if run is not None:
            run.cancel()

    def _resend(self, request_id: str, from_seq: int) -> None:
        self._publisher.resend(request_id, from_seq)


def _mtime(path: str) -> int:
    return int(Path(path).stat().st_mtime) if path and Path(path).exists() else 0


def main() -> None:
    """`python -m tasks.engine_process FD`: FD is the child's end of the socket pair; set-up comes first on it."""
    # Ctrl-C in a terminal goes to the whole group; the worker decides when the child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = load_settings()
    configure_logging(settings.log_level, "engine")
    conn = Connection(int(sys.argv[1]))
    worker, boot_id, url = msgspec.msgpack.decode(conn.recv_bytes())
    EngineProcess(conn, settings, worker, boot_id, url).serve()
    # Library threads (CUDA, OpenMP) may not join; everything of ours is flushed and closed.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
