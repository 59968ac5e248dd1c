"""A whole service for tests: a real broker, a real worker and a real API, each a process of its own.

Every process is ended by its pid. `keep` starts a worker again that was killed, as the supervisor does.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from api.broker import EmbeddedBroker
from tasks.settings import load_settings
from tests.support import wait_until
from tests.support_models import minilm_path, smollm2_path

KEY = "test-key"
CHAT = "smollm2-135m"
EMBED = "all-minilm-l6-v2"
N_CTX = 2048
START_S = 120.0
EXIT_CANNOT_START = 78  #: the worker's exit code when starting again would not help

BASE_ENV = {
    "LIS_HOST": "127.0.0.1",
    "LIS_API_KEY": KEY,
    "LIS_MODEL_ALIAS": CHAT,
    "LIS_EMBEDDING_MODEL_ALIAS": EMBED,
    "LIS_N_CTX": str(N_CTX),
    "LIS_MAX_MODEL_LENGTH": "1024",
    "LIS_N_BATCH": "512",
    "LIS_N_UBATCH": "512",
    "LIS_N_GPU_LAYERS": "0",
    "LIS_N_THREADS": "1",  # llama.cpp's threads spin at barriers: two on two busy cores are ten times slower than one
    "LIS_EMBEDDING_N_UBATCH": "512",
    "LIS_EMBEDDING_POOLING": "mean",
    "LIS_EMBEDDING_MRL": "false",
    "LIS_DRAIN_TIMEOUT": "5",
}
FAKE_ENV = {"LIS_BACKEND": "fake"}


def real_models_env() -> dict[str, str]:
    return {"LIS_GGUF_PATH": str(smollm2_path()), "LIS_EMBEDDING_GGUF_PATH": str(minilm_path())}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """One process with its log file."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def is_running(self) -> bool:
        return self.popen.poll() is None

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM, SIGKILL when that does not help; its children are ended too."""
        children = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.pid).children(recursive=True)
        if self.is_running():
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
        try:
            code = self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            code = self.popen.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        return code

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


class Stack:
    """`with Stack({...}) as stack:` gives a service that answers chats at `stack.base`."""

    def __init__(self, env: dict[str, str] | None = None, *, keep: bool = False, ready: bool = True) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="lis-test-"))
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        given = env or {}
        models = {} if given.get("LIS_BACKEND") == "fake" else real_models_env()
        self.lis_env = {
            **BASE_ENV,
            **models,
            "LIS_PORT": str(self.port),
            "LIS_DATA_DIR": str(self.dir / "data"),
            "LIS_MODELS_DIR": str(self.dir / "models"),
            "LIS_WORKER_NAME": f"test-{self.port}",
            **given,
        }
        self.key = self.lis_env["LIS_API_KEY"]
        self.worker_app = "tasks"
        self._keep = keep
        self._ready = ready
        self._closing = threading.Event()
        self._worker_wanted = True
        self._keeper: threading.Thread | None = None
        self.broker: Process | None = None
        self.worker: Process | None = None
        self.api: Process | None = None
        self._embedded: EmbeddedBroker | None = None
        self._broker_command: list[str] = []

    # -- life --------------------------------------------------------------------------------------

    def __enter__(self) -> "Stack":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.start_broker()
        self.start_worker()
        self.start_api()
        if self._keep:
            self._keeper = threading.Thread(target=self._keep_worker, daemon=True)
            self._keeper.start()
        if self._ready:
            self.wait_ready()

    def stop(self) -> None:
        self._closing.set()
        if self._keeper is not None:
            self._keeper.join()
        for process in (self.api, self.worker, self.broker):
            if process is not None:
                process.stop()
        if self._embedded is not None:
            self._embedded.forget()
        shutil.rmtree(self.dir, ignore_errors=True)

    def env(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LIS_")}
        return {**inherited, **self.lis_env}

    def _python(self, *arguments: str, log: str) -> Process:
        return Process([sys.executable, *arguments], self.env(), self.dir / log)

    # -- parts -------------------------------------------------------------------------------------

    def start_broker(self) -> None:
        if not self._broker_command:
            self._embedded = EmbeddedBroker(load_settings(data_dir=self.dir / "data"))
            self._broker_command = self._embedded.prepare()
            self.lis_env["LIS_REDIS_URL"] = self._embedded.url
        self.broker = Process(self._broker_command, self.env(), self.dir / "broker.log")
        wait_until(self._broker_answers, "the broker answers")

    def _broker_answers(self) -> bool:
        try:
            with self.redis() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def restart_broker(self) -> None:
        assert self.broker is not None
        self.broker.stop()
        self.start_broker()

    def start_worker(self) -> None:
        arguments = ["worker", "--without-mingle", "--without-gossip", "-l", "INFO"]
        self.worker = self._python("-m", "celery", "-A", self.worker_app, *arguments, log="worker.log")
        self._worker_wanted = True

    def stop_worker(self) -> None:
        self._worker_wanted = False
        assert self.worker is not None
        self.worker.stop()

    def lose_worker(self) -> None:
        """Worker and engine die at once, and nobody starts them again before `start_worker`."""
        self._worker_wanted = False
        assert self.worker is not None
        for pid in [self.worker.pid, *self.engine_pids()]:
            os.kill(pid, signal.SIGKILL)
        self.worker.popen.wait()

    def start_api(self) -> None:
        self.api = self._python("-m", "api.serve", log="api.log")

    def _keep_worker(self) -> None:
        while not self._closing.wait(0.1):
            if self._worker_wanted and self.worker is not None and not self.worker.is_running():
                if self.worker.popen.returncode == EXIT_CANNOT_START:
                    return
                self.start_worker()

    # -- questions ---------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = httpx.get(self.base + "/health", timeout=5.0).json()
            return answer
        except httpx.HTTPError:
            return {"status": "unreachable"}

    def wait_ready(self, timeout_s: float = START_S) -> None:
        def is_ready() -> bool:
            assert self.api is not None and self.worker is not None
            if not self._keep and not self.worker.is_running():
                raise AssertionError("the worker has ended:\n" + self.log_text()[-3000:])
            if not self.api.is_running():
                raise AssertionError("the API has ended:\n" + self.log_text()[-3000:])
            return bool(self.health()["status"] == "ok")

        wait_until(is_ready, "the service is ready", timeout_s)

    def client(self, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(base_url=self.base, headers=headers, timeout=60.0, **options)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.lis_env["LIS_REDIS_URL"], socket_timeout=2.0, retry=None)

    def log_text(self) -> str:
        return "".join(
            path.read_text("utf-8", "replace")
            for path in (self.dir / "worker.log", self.dir / "api.log")
            if path.exists()
        )

    def started_count(self) -> int:
        """Generations that an engine has begun."""
        return self.log_text().count("generation started ")

    def engine_pids(self) -> list[int]:
        """The processes that hold the models."""
        assert self.worker is not None
        pids = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.worker.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                    if "tasks.engine_process" in child.cmdline():
                        pids.append(child.pid)
        return pids
