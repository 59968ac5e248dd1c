"""Adapter of the public case runner: lets it start, stop and look into the service (see tests/stack.py)."""

import atexit
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.reference_tokens import reference_prompt_tokens
from tests.stack import EXIT_CANNOT_START, START_S, Stack
from tests.support import wait_until
from tests.support_models import tiny_llama_path

VISIBILITY = "LIS_TEST_VISIBILITY_TIMEOUT"  #: seconds; read by tests/short_visibility.py


def start(env: dict[str, str]) -> Stack:
    """A worker that cannot start is an answer, too: the API then says so."""
    stack = Stack(env, keep=True, ready=False)
    if VISIBILITY in env:
        stack.worker_app = "tests.short_visibility"
    try:
        stack.start()
        wait_until(lambda: _settled(stack), "the service is ready or has given up", START_S)
    except BaseException:
        stack.stop()
        raise
    return stack


def stop(handle: Stack) -> None:
    handle.stop()


def try_start(env: dict[str, str]) -> tuple[Stack | None, str]:
    """A worker that gives up is an answer: the API is then up and not ready."""
    stack = Stack(env, ready=False)
    try:
        stack.start()
        wait_until(lambda: _settled(stack), "the service is ready or has given up", 60.0)
    except (AssertionError, OSError):
        log = stack.log_text()
        stack.stop()
        return None, log
    return stack, stack.log_text()


def _settled(stack: Stack) -> bool:
    assert stack.worker is not None
    return stack.worker.popen.poll() == EXIT_CANNOT_START or stack.health()["status"] == "ok"


def worker_pids(handle: Stack) -> list[int]:
    return handle.engine_pids()


def api_pids(handle: Stack) -> list[int]:
    assert handle.api is not None
    return [handle.api.pid]


def redis_url(handle: Stack) -> str:
    return handle.lis_env["LIS_REDIS_URL"]


def redis_pid(handle: Stack) -> int:
    assert handle.broker is not None
    return handle.broker.pid


def restart_redis(handle: Stack) -> None:
    handle.restart_broker()


def log_text(handle: Stack) -> str:
    return handle.log_text()


def started_count(handle: Stack, mark: Any = None) -> int:
    return handle.started_count()


def queue_len(handle: Stack) -> int:
    """Ids that wait with a live claim, over all lanes."""
    with handle.redis() as client:
        seconds, micros = client.time()
        now_ms = seconds * 1000 + micros // 1000
        return sum(client.zcount(key, now_ms, "+inf") for key in client.keys("lis:lane:*"))


def stop_worker(handle: Stack) -> None:
    handle.stop_worker()


def start_worker(handle: Stack) -> None:
    handle.start_worker()


def slow(prefill_s: float = 0, token_s: float = 0) -> dict[str, str]:
    return {"LIS_BACKEND": "fake", "LIS_FAKE_PREFILL": str(prefill_s), "LIS_FAKE_TOKEN": str(token_s)}


def start_monitor(handle: Stack) -> int:
    command = [sys.executable, "-m", "celery", "-A", "tasks", "events", "--dump"]
    return subprocess.Popen(command, env=handle.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid


def chat_gguf() -> str:
    return str(tiny_llama_path())


def visibility(secs: float) -> dict[str, str]:
    return {VISIBILITY: str(secs)}


def ref_prompt_tokens(handle: Stack, messages: list[dict[str, Any]]) -> int:
    """By llama-cpp-python's own formatter and tokenizer, not by the service's."""
    return reference_prompt_tokens(handle.lis_env["LIS_GGUF_PATH"], messages)


def small_dir(nbytes: int) -> str:
    """A tmpfs of that size, which only root may mount; gone when the runner ends."""
    path = tempfile.mkdtemp(prefix="lis-small-")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", path]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        Path(path).rmdir()
        raise NotImplementedError("a small volume can only be mounted by root")
    atexit.register(_unmount, path)
    return path


def _unmount(path: str) -> None:
    subprocess.run(["umount", path], check=False)
    Path(path).rmdir()
