"""Starts broker, worker and API, watches them, and ends them in order.

A part that dies is started again with back-off; one that cannot start (exit code 78) ends everything with one line.
"""

import asyncio
import json
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from api.banner import print_banner
from api.broker import BrokerUnavailable, EmbeddedBroker
from api.part import Part
from tasks.settings import Settings

EXIT_CANNOT_START = 78  #: what a part ends with when starting it again would not help
BROKER_START_S = 60.0  #: a large append-only file takes a while to read
API_GRACE_S = 5.0  #: what streams may still take after Ctrl-C
STOP_WITHIN_S = 8.5  #: everything is gone this long after Ctrl-C


class CannotStart(Exception):
    """`str()` is the one line for the user."""


class Supervisor:
    """`run()` returns the exit code."""

    def __init__(self, settings: Settings, role: str) -> None:
        self._settings = settings
        self._role = role
        self._console = Console(stderr=True, highlight=False)
        self._broker: EmbeddedBroker | None = None
        self._parts: list[Part] = []
        self._stop = asyncio.Event()
        self._watchers: list[asyncio.Task[None]] = []
        self._fault: str | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        try:
            self._check_port()
            env = await self._start_broker()
            await self._start_rest(env)
            await self._until_ready()
            if not self._stop.is_set():
                print_banner(self._settings, sys.stdout)
            await self._stop.wait()
        except (CannotStart, BrokerUnavailable) as exc:
            self._fault = str(exc)
        await self._shut_down()
        if self._fault is not None:
            self._console.print(f"[bold red]local-inference-server cannot start:[/] {self._fault}", soft_wrap=True)
            return EXIT_CANNOT_START
        return 0

    # -- start -------------------------------------------------------------------------------------

    def _check_port(self) -> None:
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._settings.host, self._settings.port))
            except OSError as exc:
                where = f"{self._settings.host}:{self._settings.port}"
                raise CannotStart(f"LIS_HOST:LIS_PORT {where} cannot be listened on: {exc.strerror}") from None

    async def _start_broker(self) -> dict[str, str]:
        """The environment of worker and API. Starts the embedded broker when no LIS_REDIS_URL is set."""
        env = self._settings.to_env() | {"LIS_DRAIN_TIMEOUT": str(min(API_GRACE_S, self._settings.drain_timeout_s))}
        if self._settings.redis_url.get_secret_value():
            return env
        self._broker = EmbeddedBroker(self._settings)
        part = Part("broker", self._broker.prepare(), {}, self._print)
        await self._launch(part)
        end = time.monotonic() + BROKER_START_S
        while not await asyncio.to_thread(self._broker.is_up):
            if time.monotonic() > end or not part.is_running():
                raise CannotStart("the embedded broker does not start: " + (part.last_lines or ["it says nothing"])[-1])
            await asyncio.sleep(0.03)
        return env | {"LIS_REDIS_URL": self._broker.url}

    async def _start_rest(self, env: dict[str, str]) -> None:
        if self._role == "all":
            command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--without-mingle", "--without-gossip"]
            command += ["--loglevel", self._settings.log_level, "--hostname", "worker@%h"]
            await self._launch(Part("worker", command, env, self._print))
        await self._launch(Part("api", [sys.executable, "-m", "api.serve"], env, self._print))

    async def _launch(self, part: Part) -> None:
        self._parts.append(part)
        await part.start()
        self._watchers.append(asyncio.create_task(self._watch(part)))

    async def _watch(self, part: Part) -> None:
        """Start it again whenever it dies."""
        while True:
            code = await part.wait()
            if self._stop.is_set():
                return
            if code == EXIT_CANNOT_START:
                said = [line for line in part.last_lines if "cannot start: " in line]
                self._fault = said[-1].partition("cannot start: ")[2] if said else f"the {part.name} cannot start"
                self._stop.set()
                return
            delay_s = part.restart_delay_s()
            text = f"the {part.name} ended (exit code {code}); it is started again in {delay_s:.0f} s"
            self._console.print(f"[yellow]{text}[/]")
            await asyncio.sleep(delay_s)
            if not self._stop.is_set():
                await part.start()

    async def _until_ready(self) -> None:
        """Show downloads and loading until a chat would be answered."""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        shown = ""
        with Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        ) as progress:
            bar = progress.add_task("starting", total=None)
            while not self._stop.is_set():
                ready, text, fraction = await asyncio.to_thread(self._health)
                progress.update(bar, description=text, completed=fraction, total=1.0 if fraction else None)
                if text != shown and not self._console.is_terminal:
                    self._console.print(text)
                shown = text
                if ready:
                    return
                try:
                    await asyncio.wait_for(self._stop.wait(), 0.3)
                except TimeoutError:
                    continue

    def _health(self) -> tuple[bool, str, float]:
        """Ready, what it does now, and the fraction of a download."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._settings.host, self._settings.host)  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        try:
            with urllib.request.urlopen(f"http://{host}:{self._settings.port}/health", timeout=2.0):
                return True, "ready", 1.0
        except urllib.error.HTTPError as exc:
            try:
                body = json.loads(exc.read())
                worker: dict[str, Any] = next(iter(body.get("workers", [])), {})
            except (ValueError, AttributeError):
                return False, "starting", 0.0
            if self._role == "api" and not body.get("workers"):
                return True, "ready, waiting for a worker", 1.0
            return (
                False,
                worker.get("message") or worker.get("status") or "starting the worker",
                worker.get("progress", 0.0),
            )
        except OSError:
            return False, "starting", 0.0

    # -- end ---------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        """API and worker are told together: streams end within API_GRACE_S and free their slots. Broker last."""
        self._stop.set()
        end = time.monotonic() + STOP_WITHIN_S
        parts = {part.name: part for part in self._parts}
        broker = parts.pop("broker", None)
        await asyncio.gather(*(part.stop(end - time.monotonic()) for part in parts.values()))
        if broker is not None:
            await broker.stop(1.0)
        for watcher in self._watchers:
            watcher.cancel()
        if self._broker is not None:
            self._broker.forget()

    def _print(self, name: str, line: str) -> None:
        self._console.print(line if line.startswith(name) else f"{line}", markup=False, soft_wrap=True)
