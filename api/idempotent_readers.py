"""Reading the answer of a run from its start: in the run's own process, or in another one through Redis.

Other processes poll, each reader 20 times a second, on the store's few connections. A blocking read would need a
connection for each reader and would not tell that the run's process is gone; it would save a retry some 25 ms.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from quart import Response

from api.errors import KeyConflict, describe
from api.idempotency_store import Head, IdempotencyStore, Phase, Record
from api.idempotent_run import REDIS_ERRORS, Run
from api.job_types import QueueUnavailable
from api.responses import set_request_id
from api.sse import frame

POLL_S = 0.05
JOIN_S = 2.0  #: how often a reader says that it is there; less than half of its lease
SILENCE_S = 5.0  #: a Redis that does not answer for so long has lost the run's keys
LOST = "The server process that ran this request was lost."
REPLAYED_HEADER = "idempotent-replayed"

Asked = TypeVar("Asked")


class RunGone(Exception):
    """Cancelled before this reader had anything of its answer: the request may start anew."""


class Reader(Protocol):
    """One reader of one run. Both methods raise QueueUnavailable when the run is lost."""

    async def head(self) -> Head:
        """Raises RunGone, KeyConflict."""

    async def read(self) -> bytes:
        """More of the body, after its head; empty at the end."""

    async def leave(self) -> None:
        """The run is cancelled with its last reader."""


class LocalReader:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._position = 0
        self._is_there = True
        run.readers += 1

    async def head(self) -> Head:
        while self._run.head is None:
            if self._run.phase is Phase.CANCELLED:
                raise RunGone
            await self._run.changed()
        return self._run.head

    async def read(self) -> bytes:
        run = self._run
        while self._position == run.shown and not run.is_over:
            if run.phase is Phase.CANCELLED:
                raise QueueUnavailable(LOST)
            await run.changed()
        data = bytes(run.body[self._position : run.shown])
        self._position += len(data)
        return data

    async def leave(self) -> None:
        if self._is_there:
            self._is_there = False
            self._run.leave()


class RemoteReader:
    def __init__(self, run: str, store: IdempotencyStore) -> None:
        self._run = run
        self._store = store
        self._id = secrets.token_hex(8)
        self._position = 0
        self._record: Record | None = None
        self._data = b""
        self._join_at = 0.0
        self._asking: asyncio.Future[Any] | None = None

    async def head(self) -> Head:
        while True:
            record = await self._poll()
            if record.phase is Phase.CANCELLED:
                raise RunGone
            if record.phase is Phase.TOO_LARGE:
                message = "The running request of this idempotency key has an answer too large to be shared."
                raise KeyConflict(message, "idempotency_key_in_use", may_retry=True)
            if record.head is not None:
                return record.head
            await asyncio.sleep(POLL_S)

    async def read(self) -> bytes:
        while not self._data:
            record = await self._poll()
            if self._data:
                break
            if record.phase is not Phase.RUNNING:
                if record.phase in (Phase.CANCELLED, Phase.TOO_LARGE) or self._position < record.size:
                    raise QueueUnavailable(LOST)
                return b""
            await asyncio.sleep(POLL_S)
        data, self._data = self._data, b""
        return data

    async def leave(self) -> None:
        if self._asking is not None:
            await asyncio.wait({self._asking})
        if self._join_at:
            with suppress(*REDIS_ERRORS):  # else it lapses
                await self._store.leave(self._run, self._id)

    async def _poll(self) -> Record:
        """How far it is; what came of the body is in `_data`. Outlasts a Redis that is away for a moment."""
        silent_at = time.monotonic() + SILENCE_S
        while True:
            try:
                if self._record is not None and self._record.phase is Phase.RUNNING:
                    await self._join()
                record, data = await self._ask(self._store.poll(self._run, self._position))
                break
            except REDIS_ERRORS:
                if time.monotonic() > silent_at:
                    raise QueueUnavailable(LOST) from None
                await asyncio.sleep(POLL_S)
        if record is None:
            raise QueueUnavailable(LOST)
        self._record = record
        if record.phase is not Phase.TOO_LARGE:
            self._data += data
            self._position += len(data)
        return record

    async def _join(self) -> None:
        if time.monotonic() >= self._join_at:
            self._join_at = time.monotonic() + JOIN_S
            await self._ask(self._store.join(self._run, self._id))

    async def _ask(self, work: Coroutine[Any, Any, Asked]) -> Asked:
        """In a task of its own: redis-py waits with `asyncio.wait_for`, which before Python 3.12 may swallow that this
        reader is cancelled, and it would read on for nobody."""
        self._asking = asyncio.ensure_future(work)
        return await asyncio.shield(self._asking)


async def respond(reader: Reader, path: str, is_replay: bool) -> Response:
    """The answer as the run gave it. Raises what the reader raises before the answer has begun."""
    head = await reader.head()
    if head.is_stream:
        response = Response(_stream(reader, path), head.status)
        response.timeout = None
    else:
        pieces = []
        while piece := await reader.read():
            pieces.append(piece)
        response = Response(b"".join(pieces), head.status)
    for name, value in head.headers:
        response.headers[name] = value
    set_request_id(head.request_id)
    if is_replay:
        response.headers[REPLAYED_HEADER] = "true"
    return response


async def _stream(reader: Reader, path: str) -> AsyncGenerator[bytes]:
    try:
        while data := await reader.read():
            yield data
    except QueueUnavailable as exc:
        yield _error_frame(describe(exc).body(), path)


def _error_frame(error: dict[str, Any], path: str) -> bytes:
    """As the endpoint's own streams tell of an error; of /responses the event that ends it."""
    if not path.endswith("/responses"):
        return frame(error)
    inner = error["error"]
    flat = {name: inner[name] for name in ("code", "message", "param")}
    return frame({"type": "error", **flat, "error": inner}, is_named=True)
