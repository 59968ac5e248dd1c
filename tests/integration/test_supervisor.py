"""`local-inference-server`: it comes up, mends itself, ends without a trace, and says in one line what is wrong."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tasks.celery import embedded_url_file
from tasks.settings import load_settings
from tests.integration.chat_client import assert_served
from tests.stack import BASE_ENV, CHAT, EMBED, FAKE_ENV, Stack, free_port
from tests.support import wait_until

GONE_WITHIN_S = 10.0


class Cli:
    """The command as a user starts it, in a data folder of its own."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, data_dir: Path | None = None) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="lis-cli-"))
        self.data_dir = data_dir or self.dir / "data"
        self.port = free_port()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LIS_")}
        own = {
            "LIS_PORT": str(self.port),
            "LIS_DATA_DIR": str(self.data_dir),
            "LIS_MODELS_DIR": str(self.dir / "models"),
            "LIS_WORKER_NAME": f"cli-{self.port}",
        }
        self.env = {**inherited, **BASE_ENV, **FAKE_ENV, **own, **(env or {})}
        self.out = ""
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "api.cli", *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.out += line

    def wait_ready(self) -> None:
        wait_until(lambda: "Ready at" in self.out or self.popen.poll() is not None, "ready", 60.0)
        assert self.popen.poll() is None, self.out

    def wait_end(self, timeout_s: float = 30.0) -> int:
        wait_until(lambda: self.popen.poll() is not None, "it ends by itself", timeout_s)
        self._reader.join(5.0)
        return int(self.popen.returncode)

    def parts(self) -> dict[str, psutil.Process]:
        """Its children by name, and the engine."""
        names = {"celery": "worker", "api.serve": "api", "valkey": "broker", "tasks.engine_process": "engine"}
        found = {}
        for process in psutil.Process(self.popen.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                line = " ".join(process.cmdline())
                found.update({name: process for word, name in names.items() if word in line})
        return found

    def chat(self) -> httpx.Response | None:
        body = {"model": CHAT, "messages": [{"role": "user", "content": "MARK-1"}], "max_tokens": 2}
        headers = {"Authorization": f"Bearer {self.env['LIS_API_KEY']}"}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        try:
            return httpx.post(url, json=body, headers=headers, timeout=30.0)
        except httpx.HTTPError:
            return None

    def wait_served(self) -> None:
        def is_served() -> bool:
            answer = self.chat()
            return answer is not None and answer.status_code == 200

        wait_until(is_served, f"a chat is answered:\n{self.out[-2000:]}", 60.0)

    def close(self) -> None:
        left = []
        if self.popen.poll() is None:
            left = list(self.parts().values())
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(15)
            self.popen.kill()
            self.popen.wait()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._reader.join(5.0)
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)


Start = Callable[..., Cli]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands that are ended with the test."""
    started: list[Cli] = []

    def start(*arguments: str, **options: object) -> Cli:
        started.append(Cli(*arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for cli in started:
        cli.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Cli]:
    cli = Cli()
    try:
        cli.wait_ready()
        yield cli
    finally:
        cli.close()


def assert_one_line(cli: Cli, *words: str) -> None:
    """It says what is wrong once, with these words in it, and shows no traceback."""
    said = [line for line in cli.out.splitlines() if "cannot start:" in line]
    assert len([line for line in said if line.startswith("local-inference-server")]) == 1, cli.out
    assert all(word in said[-1] for word in words), cli.out
    assert "Traceback" not in cli.out


# -- a running server ---------------------------------------------------------------------------------


def test_it_tells_url_models_and_a_command_to_try(running: Cli) -> None:
    assert f"Ready at http://127.0.0.1:{running.port}/v1" in running.out
    assert CHAT in running.out
    assert EMBED in running.out
    assert f"curl http://127.0.0.1:{running.port}/v1/chat/completions" in running.out
    running.wait_served()
    assert set(running.parts()) == {"broker", "worker", "engine", "api"}


@pytest.mark.parametrize("name", ["worker", "api", "broker"])
def test_a_part_that_is_killed_is_started_again(running: Cli, name: str) -> None:
    old = running.parts()[name]
    old.kill()
    wait_until(lambda: name in running.parts() and running.parts()[name].pid != old.pid, "started again", 60.0)
    running.wait_served()
    assert f"the {name} ended" in running.out


def test_a_second_server_on_the_same_data_is_refused(running: Cli, start: Start) -> None:
    second = start(data_dir=running.data_dir)
    assert second.wait_end() == 78
    assert_one_line(second, "LIS_DATA_DIR", str(running.data_dir))
    running.wait_served()


def test_a_port_in_use_is_refused(running: Cli, start: Start) -> None:
    second = start(env={"LIS_PORT": str(running.port)})
    assert second.wait_end() == 78
    assert_one_line(second, "LIS_PORT", str(running.port))
    running.wait_served()


# -- its end ----------------------------------------------------------------------------------------------


def assert_gone(processes: list[psutil.Process]) -> None:
    def is_gone() -> bool:
        return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    wait_until(is_gone, f"{processes} are gone", GONE_WITHIN_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_ends_in_order(start: Start, number: signal.Signals) -> None:
    cli = start()
    cli.wait_ready()
    parts = list(cli.parts().values())
    assert len(parts) == 4
    url_file = embedded_url_file(load_settings(data_dir=cli.data_dir))
    assert url_file.exists()
    began_s = time.monotonic()
    cli.popen.send_signal(number)
    assert cli.wait_end(GONE_WITHIN_S) == 0, cli.out
    assert time.monotonic() - began_s < GONE_WITHIN_S
    assert_gone(parts)
    assert not url_file.exists()
    assert "Traceback" not in cli.out


def test_it_ends_while_it_is_starting(start: Start) -> None:
    cli = start()
    wait_until(lambda: "worker" in cli.parts(), "the worker has been started", 30.0)
    parts = list(cli.parts().values())
    cli.popen.send_signal(signal.SIGINT)
    assert cli.wait_end(GONE_WITHIN_S) == 0, cli.out
    assert_gone(parts)


def test_a_killed_supervisor_leaves_nothing_behind(start: Start) -> None:
    cli = start()
    cli.wait_ready()
    parts = list(cli.parts().values())
    assert len(parts) == 4
    cli.popen.kill()
    assert_gone(parts)


# -- what is wrong, in one line -----------------------------------------------------------------------------


def test_all_bad_settings_are_listed_in_one_message(start: Start) -> None:
    cli = start(env={"LIS_N_CTX": "0", "LIS_BUSY_TIMEOUT": "soon", "LIS_BACKEND": "magic"})
    assert cli.wait_end() == 2
    assert all(name in cli.out for name in ("LIS_N_CTX", "LIS_BUSY_TIMEOUT", "LIS_BACKEND"))
    assert "Traceback" not in cli.out


def test_a_worker_that_cannot_start_ends_everything(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_text("this is no model")
    cli = start(env={"LIS_BACKEND": "llamacpp", "LIS_GGUF_PATH": str(model), "LIS_EMBEDDING_ENABLED": "false"})
    assert cli.wait_end(60.0) == 78, cli.out
    assert_one_line(cli, "model.gguf")


def test_role_api_needs_a_redis(start: Start) -> None:
    cli = start("--role", "api")
    assert cli.wait_end() == 2
    assert "LIS_REDIS_URL" in cli.out
    assert "Traceback" not in cli.out


# -- other ways to start it --------------------------------------------------------------------------------------


def test_api_alone_with_a_worker_of_its_own(start: Start, fake_live: Stack) -> None:
    """`--role api` on one host, `celery -A tasks worker` on another, one Redis."""
    cli = start("--role", "api", env={"LIS_REDIS_URL": fake_live.lis_env["LIS_REDIS_URL"]})
    cli.wait_ready()
    cli.wait_served()
    assert set(cli.parts()) == {"api"}
    assert_served(fake_live)  # both APIs at once, each with its own answers


def test_hypercorn_serves_the_app_factory(fake_live: Stack, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "hypercorn", "api.app:create_app()", "--bind", f"127.0.0.1:{port}"]
    with (tmp_path / "hypercorn.log").open("w") as log:
        process = subprocess.Popen(command, env=fake_live.env(), stdout=log, stderr=subprocess.STDOUT)
    try:

        def is_served() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5.0).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(is_served, "hypercorn serves", 30.0)
    finally:
        process.terminate()
        assert process.wait(15) == 0, (tmp_path / "hypercorn.log").read_text()
