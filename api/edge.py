"""What surrounds the framework on every connection: paths, cleanup, leftover request bodies, the access log."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, cast
from urllib.parse import urlsplit

from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, ASGISendEvent, Scope

from api.auth import CALLER
from api.keys import NOBODY, Caller
from api.upload_body import BODY, UploadBody

log = logging.getLogger("api.access")

QUIET_PATHS = frozenset(["/health", "/v1/health"])  #: probes come every second or so

CLEANUP = "lis.cleanup"  #: scope key of the request's AsyncExitStack
# A client that is still sending does not read: closing on it now resets the connection and loses our answer
DRAIN_MAX_S = 30.0
DRAIN_IDLE_S = 1.0
LEAVE_S = 1.0  #: for the framework to end what runs for a client that has left


class Edge:
    """ASGI middleware around the whole app.

    `scope["lis.cleanup"]` is an AsyncExitStack that is closed when the request is over, in whatever way: the
    framework closes a response's body only once it has begun to send it, and a client may leave before that.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http":
            await self._http(cast(dict[str, Any], scope), receive, send)
        elif scope["type"] == "websocket":
            await send(
                cast(ASGISendEvent, {"type": "websocket.close", "code": 1000, "reason": None})
            )  # before accept: 403
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: dict[str, Any], receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        started_s = time.monotonic()
        inner = {**scope, "path": plain_path(scope["path"])}
        exchange = Exchange(receive, send, inner)
        try:
            async with AsyncExitStack() as cleanup:
                inner[CLEANUP] = cleanup
                await self._run(inner, exchange)
        finally:
            caller: Caller = inner.get(CALLER, NOBODY)
            log.log(
                logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO,
                "request answered" if exchange.is_whole else "client left",
                extra={
                    "request_id": exchange.request_id,
                    "status": exchange.status,
                    "method": scope["method"],
                    "route": scope["path"][:200],
                    "ms": round((time.monotonic() - started_s) * 1000, 1),
                    **({"key": caller.name} if caller.name else {}),
                },
            )

    async def _run(self, scope: dict[str, Any], exchange: "Exchange") -> None:
        """The app, cancelled once more when it goes on although the client has left.

        The framework cancels a handler once, and a library may lose that: Python 3.11's `asyncio.wait_for` does when
        its awaitable ends in the same moment. The request would run for nobody.
        """
        try:
            async with asyncio.timeout(None) as limit:
                exchange.on_left = lambda: limit.reschedule(asyncio.get_running_loop().time() + LEAVE_S)
                await self.app(scope, exchange.receive, exchange.send)
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("a request outlived its client, and was ended", extra={"route": scope["path"][:200]})


def plain_path(path: str) -> str:
    """A trailing or doubled slash is the same route: base URLs end in `/` as often as not.

    A target in absolute form, as proxies send it, loses its scheme and host (RFC 9112, 3.2.2).
    """
    if "://" in path and not path.startswith("/"):
        path = urlsplit(path).path
    return "/" + "/".join(part for part in path.split("/") if part) if path.startswith("/") else path


class Exchange:
    """One request's messages. Once the answer is out, what still comes of the body is read and thrown away."""

    def __init__(self, receive: ASGIReceiveCallable, send: ASGISendCallable, scope: dict[str, Any]) -> None:
        self._receive = receive
        self._send = send
        self._scope = scope
        self._body_ended = asyncio.Event()
        self._received = 0
        self._is_discarding = False
        self.status = 0
        self.request_id = ""
        self.is_whole = False
        self.on_left: Callable[[], None] = lambda: None  #: called when the client has left

    async def receive(self) -> ASGIReceiveEvent:
        if (upload := self._upload()) is not None:
            await upload.wait_for_room()
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.on_left()
        if message["type"] == "http.request":
            self._received += 1
            if not message.get("more_body", False):
                self._body_ended.set()
            if self._is_discarding:
                return cast(ASGIReceiveEvent, {**message, "body": b""})
        return message

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = dict(message.get("headers", []))
            self.request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._drain()
            self.is_whole = True
        await self._send(message)

    def _upload(self) -> UploadBody | None:
        """Its body, where it is large."""
        upload: UploadBody | None = self._scope.get(BODY)
        return upload

    async def _drain(self) -> None:
        """Wait until the body has ended, nothing came for a while, or it takes too long."""
        self._is_discarding = True
        if (upload := self._upload()) is not None:
            upload.let_go()
        deadline_s = time.monotonic() + DRAIN_MAX_S
        while not self._body_ended.is_set() and time.monotonic() < deadline_s:
            before = self._received
            try:
                await asyncio.wait_for(self._body_ended.wait(), DRAIN_IDLE_S)
            except TimeoutError:
                if self._received == before:
                    return
