"""One run of a request with an `Idempotency-Key`: the app asked as by a client, its answer recorded.

The run belongs to nobody's connection. It goes on while somebody reads the answer, here or in another process.
"""

import asyncio
import contextvars
import logging
import secrets
import time
from contextlib import AsyncExitStack
from typing import Any

import redis

from api.edge import CLEANUP
from api.idempotency_store import READ_BYTES, Head, IdempotencyStore, Keyed, Phase, Record
from api.sse import READER

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 8 * 1024 * 1024  #: a larger answer is not kept
PACE_S = 0.05  #: between two writes: a few tokens each
RENEW_S = 1.5  #: well below the lease
GIVE_UP_S = 60.0  #: how long a finished answer is held for a Redis that does not answer
SECOND_CANCEL_S = 1.0  #: `asyncio.wait_for` before Python 3.12 may swallow the first one
REDIS_ERRORS = (redis.RedisError, OSError)

#: what each reader's own answer gets anew
OWN_HEADERS = frozenset({"x-request-id", "vary", "date", "content-length", "connection"})


class Run:
    """Started on construction. Used on the event loop only."""

    def __init__(self, keyed: Keyed, run: str, store: IdempotencyStore) -> None:
        self.keyed = keyed
        self.id = run
        self.readers = 0  #: of this process
        self.head: Head | None = None  #: once it may be shown
        self.body = bytearray()
        self.shown = 0  #: bytes of the body that readers may have
        self.is_over = False  #: all is shown
        self.phase = Phase.RUNNING
        self._store = store
        self._head: Head | None = None
        self._scope: dict[str, Any] = {}
        self._written = 0
        self._is_lost = False  #: another run has the key: this one is for the readers of its own process alone
        self._is_settled = False  #: Redis knows how it ended, or never will
        self._left = asyncio.Event()
        self._dirty = asyncio.Event()
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, app: Any, scope: dict[str, Any], body: bytes) -> "asyncio.Task[None]":
        """Ask `app` with this scope and body. The task returned is done when the run is settled."""
        # a context of its own: the request that began it may be long over by the time it ends
        serving = asyncio.create_task(self._serve(app, scope, body), context=contextvars.Context())
        keeping = asyncio.create_task(self._keep(), context=contextvars.Context())
        self._tasks = [serving, keeping]
        return keeping

    @property
    def is_open(self) -> bool:
        """One more may read it from its start."""
        return self.phase not in (Phase.FAILED, Phase.CANCELLED)

    async def changed(self) -> None:
        """Return at the next change of what may be shown."""
        await self._changed.wait()

    def leave(self) -> None:
        """A reader of this process is gone."""
        self.readers -= 1
        self._dirty.set()

    async def stop(self) -> None:
        """The process ends: an answer that is finished is recorded, else others may run the request."""
        if not self.is_over and self.phase is not Phase.CANCELLED:
            self._cancel()
        self._dirty.set()
        await asyncio.wait(self._tasks, timeout=2.0)
        for task in self._tasks:
            task.cancel()

    # -- the answer --------------------------------------------------------------------------------

    async def _serve(self, app: Any, scope: dict[str, Any], body: bytes) -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await self._left.wait()
            return {"type": "http.disconnect"}

        try:
            async with AsyncExitStack() as cleanup:
                self._scope = {**scope, CLEANUP: cleanup}
                await app(self._scope, receive, self._send)
        except Exception:
            log.exception("run of a request with an idempotency key failed")
        finally:
            if not self.is_over and self.phase is not Phase.CANCELLED:  # it broke off
                self._cancel()

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._head = _head(message)
            return
        if message["type"] != "http.response.body" or self.phase is Phase.CANCELLED:
            return
        assert self._head is not None
        self.body += message.get("body", b"")
        is_last = not message.get("more_body", False)
        if self._head.status != 200 and not is_last:
            return  # shown when it is whole, and the key free
        if self.phase is Phase.RUNNING and (self._head.status != 200 or self._has_failed()):
            await self._fail()
        if self.phase is Phase.RUNNING and len(self.body) > MAX_ANSWER_BYTES:
            self.phase = Phase.TOO_LARGE
            log.warning("answer too large to be kept", extra={"request_id": self._head.request_id})
        if self.phase is Phase.RUNNING and is_last:
            self.phase = Phase.FINISHED
        self.head = self._head
        self.shown = len(self.body)
        self.is_over = is_last
        self._tell()

    def _has_failed(self) -> bool:
        """The stream's last frame is an error."""
        reader = self._scope.get(READER)
        return reader is not None and reader.has_failed

    async def _fail(self) -> None:
        """Free the key before anybody hears of the error: a retry shall not find it."""
        self.phase = Phase.FAILED
        try:
            async with self._writing:
                await self._flush()
        except REDIS_ERRORS as exc:
            log.warning("key not freed yet: %s", type(exc).__name__)

    def _cancel(self) -> None:
        self.phase = Phase.CANCELLED
        self._left.set()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._dirty.set()

    # -- Redis -------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Write what is new, hold the key, and cancel when nobody reads, until the run has ended and is recorded."""
        await self._keep_until_settled()
        if self.phase is Phase.CANCELLED:
            serving = self._tasks[0]
            await asyncio.wait({serving}, timeout=SECOND_CANCEL_S)
            serving.cancel()

    async def _keep_until_settled(self) -> None:
        give_up_at = 0.0
        while not self._is_settled:
            await self._wait_dirty(PACE_S if self.readers == 0 else RENEW_S)
            try:
                async with self._writing:
                    await self._flush()
                    await self._cancel_if_alone()
            except REDIS_ERRORS as exc:
                if self.readers == 0 and not self._has_ended():
                    self._cancel()  # nobody can read it
                if self._has_ended():
                    give_up_at = give_up_at or time.monotonic() + GIVE_UP_S
                    if time.monotonic() > give_up_at:
                        log.warning("end of a run not recorded: %s", type(exc).__name__)
                        return
            await asyncio.sleep(PACE_S)

    def _has_ended(self) -> bool:
        return self.is_over or self.phase is Phase.CANCELLED

    async def _wait_dirty(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._dirty.wait()
        except TimeoutError:
            pass
        self._dirty.clear()

    async def _cancel_if_alone(self) -> None:
        """Nobody here reads it, and in no other process: the key is free, and nothing is run for nobody."""
        if self.readers or self._has_ended():
            return
        if self._is_lost or await self._store.cancel(self.keyed, self.id):
            self._is_settled = True
            self._cancel()

    async def _flush(self) -> None:
        """Bring Redis up to date. Raises RedisError, OSError."""
        while not self._is_settled:
            if self._is_lost:
                self._is_settled = self._has_ended()
                return
            if self.phase is Phase.CANCELLED or (self.phase is Phase.TOO_LARGE and self.is_over):
                await self._store.cancel(self.keyed, self.id, if_alone=False)
                self._is_settled = True
                return
            record, data = self._next()
            written = await self._store.write(self.keyed, self.id, record, self._written, data)
            if written is None:
                await self._begin_again()
                continue
            is_held = written == self._written + len(data)
            self._written = written
            if not is_held:
                continue
            if record.phase is Phase.FINISHED:
                await self._store.keep(self.keyed, self.id, written)
            self._is_settled = record.phase in (Phase.FINISHED, Phase.FAILED)
            if self._is_settled or not self._has_more():
                return

    def _next(self) -> tuple[Record, bytes]:
        """What to write: one piece of the body, and how far the run is with it."""
        if self.phase is Phase.TOO_LARGE:
            self._written = 0
            return Record(Phase.TOO_LARGE), b""
        limit = len(self.body) if self.phase is Phase.FAILED else self.shown
        data = bytes(self.body[self._written : min(limit, self._written + READ_BYTES)])
        ends = self._written + len(data) == limit and (self.phase is Phase.FAILED or self.is_over)
        head = self._head if self.phase is Phase.FAILED else self.head
        return Record(self.phase if ends else Phase.RUNNING, head, self._written + len(data)), data

    def _has_more(self) -> bool:
        return self.phase is not Phase.TOO_LARGE and self._written < self.shown

    async def _begin_again(self) -> None:
        """The key lapsed while Redis was away, or was lost with it: take it again, from the answer's start."""
        self._written = 0
        held = await self._store.begin(self.keyed, self.id)
        if held.run != self.id:
            log.warning("key taken by another run while Redis was away", extra={"run": self.id})
            self._is_lost = True


def _head(message: dict[str, Any]) -> Head:
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in message["headers"]]
    kept = tuple(
        (name, value) for name, value in headers if name not in OWN_HEADERS and not name.startswith("access-control-")
    )
    return Head(message["status"], kept, dict(headers).get("x-request-id", ""))


def new_run_id() -> str:
    return secrets.token_hex(12)
