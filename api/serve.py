"""The API process: `python -m api.serve`. Hypercorn with our application, and an orderly end on SIGTERM."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable

from hypercorn.asyncio import serve
from hypercorn.config import Config

from api import http_protocol
from api.app import create_app
from api.batches.service import Batches
from api.batches.storage import open_storage
from api.jobs import JobClient
from api.keys import load_keys
from tasks.log import configure_logging
from tasks.quick_exit import skip_last_collection
from tasks.settings import Settings, SettingsInvalid, load_settings

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75.0
LAST_WORDS_S = 1.0  #: after LIS_DRAIN_TIMEOUT, for the error frames of what still ran


def hypercorn_config(settings: Settings) -> Config:
    config = Config()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    config.bind = [f"{host}:{settings.port}"]
    config.graceful_timeout = settings.drain_timeout_s + LAST_WORDS_S
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    config.accesslog = None  # api/app.py logs requests, with their ids
    config.errorlog = logging.getLogger("hypercorn.error")
    return config


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Then what waits is refused; what runs may end within LIS_DRAIN_TIMEOUT."""
    jobs = JobClient(settings)
    stop = asyncio.Event()

    def shut_down() -> None:
        log.info("shutting down")
        jobs.refuse_waiting()
        loop.call_later(settings.drain_timeout_s, jobs.end_running)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shut_down)
    http_protocol.install()
    batches = Batches(settings, jobs)
    await jobs.start()
    await batches.start()
    try:
        await serve(create_app(settings, jobs, batches), hypercorn_config(settings), shutdown_trigger=stop.wait)
    finally:
        await batches.stop()
        await jobs.stop()


def main() -> None:
    try:
        settings = load_settings()
        load_keys(settings)
        open_storage(settings)
    except SettingsInvalid as exc:
        sys.exit(f"local-inference-server: settings are wrong:\n{exc}")
    configure_logging(settings.log_level, "api")
    skip_last_collection()
    if not settings.has_api_key() and settings.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning("LIS_API_KEY is not set: whoever reaches %s:%s can use this server", settings.host, settings.port)
    # uvloop, where there is one, saves the API some 0.1 of 0.75 ms of work for a token (two slow cores)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(settings))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None: asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
