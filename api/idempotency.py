"""`Idempotency-Key`: a request that is sent again gets the answer of the first, and nothing runs twice.

The first request with a key starts a run (idempotent_run.py), and it and all that follow read that run's answer
(idempotent_readers.py). Keys are per API key, and hold in all API processes of one Redis (idempotency_store.py).
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, cast

from quart import Request, Response

from api.auth import caller_of
from api.body import read_bytes
from api.edge import CLEANUP
from api.errors import KeyConflict
from api.idempotency_store import Holder, IdempotencyStore, Keyed, keyed_of
from api.idempotent_readers import LocalReader, Reader, RemoteReader, RunGone, respond
from api.idempotent_run import REDIS_ERRORS, Run, new_run_id
from api.job_types import QueueUnavailable
from api.protocol.fields import InvalidRequest
from tasks.settings import Settings

log = logging.getLogger(__name__)

KEY_HEADER = "idempotency-key"
MAX_KEY = 255  #: characters
PATHS = frozenset({"/chat/completions", "/completions", "/embeddings", "/responses"})
OFF_LOOP_BYTES = 1024 * 1024  #: larger bodies are hashed on a thread
CONNECTIONS = 16  #: to Redis, of this process
MAX_STARTS = 5  #: how often a request that finds a run just cancelled looks again
UNAVAILABLE = "The queue (Redis) does not answer. Try again soon."
RETRY_S = 2.0
#: of the first request's ASGI scope; the rest is its connection's
SCOPE = frozenset(
    {
        *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
        *("root_path", "client", "server"),
    }
)


class Idempotency:
    """One per API process. `app` is asked for the answers, without the header."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._client: Any = None
        self._store: IdempotencyStore | None = None
        self._is_closing = False
        self._runs: dict[str, Run] = {}  #: by the key's digest
        self._background: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """Runs that have not ended are cancelled; readers in other processes may run their requests."""
        self._is_closing = True
        await asyncio.gather(*(run.stop() for run in list(self._runs.values())))
        if self._background:
            await asyncio.wait(self._background, timeout=2.0)
        if self._client is not None:
            await self._client.aclose()

    async def answer(self, request: Request) -> Response | None:
        """The answer to a request with the header; None: it has no meaning here.

        Raises InvalidRequest, KeyConflict, QueueUnavailable, and as `read_bytes`.
        """
        path = request.path.removeprefix("/v1")
        if request.method != "POST" or path not in PATHS:
            return None
        key = read_key(request.headers.getlist(KEY_HEADER))
        body = await read_bytes(request, self._settings.max_body_bytes)
        encoding = request.headers.get("Content-Encoding", "")
        given = (caller_of(request).name, key, path, encoding, body)
        is_large = len(body) > OFF_LOOP_BYTES
        keyed = await asyncio.to_thread(keyed_of, *given) if is_large else keyed_of(*given)
        cleanup = cast(dict[str, AsyncExitStack], request.scope)[CLEANUP]
        for _ in range(MAX_STARTS):
            reader, is_replay = await self._reader(keyed, request, body)
            cleanup.callback(self._leave, reader)
            try:
                return await respond(reader, path, is_replay)
            except RunGone:
                continue
        raise QueueUnavailable("The request of this idempotency key was cancelled. Try again.")

    async def _reader(self, keyed: Keyed, request: Request, body: bytes) -> tuple[Reader, bool]:
        """Of the run that has the key, which is begun when there is none; and whether there was one."""
        if (reader := self._local(keyed)) is not None:
            return reader, True
        if self._is_closing:
            raise QueueUnavailable("The server is shutting down.", RETRY_S)
        store, run_id = self._open_store(), new_run_id()
        begun = asyncio.ensure_future(store.begin(keyed, run_id))
        try:
            held = await asyncio.shield(begun)  # for why see RemoteReader
        except BaseException as exc:
            self._spawn(_free(store, keyed, run_id, begun))  # it may have arrived all the same
            if isinstance(exc, REDIS_ERRORS):
                raise QueueUnavailable(UNAVAILABLE, RETRY_S) from None
            raise
        if held.run == run_id:
            return LocalReader(self._start(keyed, run_id, request, body)), False
        _check_body(keyed, held.body)
        return self._local(keyed, held.run) or RemoteReader(held.run, store), True

    def _local(self, keyed: Keyed, run_id: str = "") -> LocalReader | None:
        run = self._runs.get(keyed.digest)
        if run is None or not run.is_open or (run_id and run.id != run_id):
            return None
        _check_body(keyed, run.keyed.body)
        return LocalReader(run)

    def _start(self, keyed: Keyed, run_id: str, request: Request, body: bytes) -> Run:
        run = Run(keyed, run_id, self._open_store())
        scope: dict[str, Any] = {name: value for name, value in request.scope.items() if name in SCOPE}
        name = KEY_HEADER.encode()
        scope["headers"] = [header for header in request.scope["headers"] if header[0].lower() != name]
        self._runs[keyed.digest] = run
        run.start(self._app, scope, body).add_done_callback(lambda _: self._forget(run))
        return run

    def _forget(self, run: Run) -> None:
        if self._runs.get(run.keyed.digest) is run:
            del self._runs[run.keyed.digest]

    def _leave(self, reader: Reader) -> None:
        self._spawn(reader.leave())  # in the background: the handler may be in the middle of being cancelled

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _open_store(self) -> IdempotencyStore:
        """At the first key: most servers never see one."""
        if self._store is None:
            import redis.asyncio

            from tasks.celery import redis_url  # here: it brings Celery

            limits: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": None}
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                redis_url(self._settings), timeout=1.0, max_connections=CONNECTIONS, **limits
            )
            self._client = redis.asyncio.Redis.from_pool(pool)
            self._store = IdempotencyStore(self._client, self._settings.idempotency_ttl_s)
        return self._store


def read_key(values: list[str]) -> str:
    """The header's only value. Raises InvalidRequest."""
    key = values[0] if len(values) == 1 else ""
    if not 1 <= len(key) <= MAX_KEY or not (key.isascii() and key.isprintable()):
        message = f"The header 'Idempotency-Key' must be given once, as 1 to {MAX_KEY} printable ASCII characters."
        raise InvalidRequest(message, "Idempotency-Key")
    return key


def _check_body(keyed: Keyed, body: str) -> None:
    if keyed.body != body:
        message = "This idempotency key was used for another request: with another body, or another URL."
        raise KeyConflict(message, "idempotency_key_reused", may_retry=False)


async def _free(store: IdempotencyStore, keyed: Keyed, run_id: str, begun: "asyncio.Future[Holder]") -> None:
    await asyncio.wait({begun})
    try:
        await store.cancel(keyed, run_id, if_alone=False)
    except REDIS_ERRORS as exc:
        log.warning("key not freed: %s", type(exc).__name__)  # it lapses
