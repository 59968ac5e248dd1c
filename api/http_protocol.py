"""Hypercorn's connections, HTTP/1.1 and HTTP/2, with our answers to what never becomes a request of the app.

Hypercorn 0.18 answers a malformed request without a body, keeps a connection that its client has closed until the
keep-alive time is over, and ends a whole connection with an exception on some HTTP/2 frames. It has no setting for
these classes, so `install` puts ours in their places.
"""

import contextlib
import logging
from typing import Any

import h2.errors
import h2.events
import h2.exceptions
import h11
import hypercorn.asyncio.run
import hypercorn.asyncio.tcp_server
import hypercorn.protocol
import msgspec
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol

from api.cors import EXPOSED
from api.errors import http_error
from api.responses import JSON_TYPE
from tasks.contracts import new_request_id

log = logging.getLogger(__name__)


def install() -> None:
    """Before the first connection."""
    hypercorn.asyncio.run.TCPServer = Connection  # type: ignore[attr-defined]
    hypercorn.protocol.H11Protocol = Http1  # type: ignore[attr-defined]
    hypercorn.protocol.H2Protocol = Http2  # type: ignore[attr-defined]


class Connection(TCPServer):
    async def _read_data(self) -> None:
        """Until the client has closed. The timer of idle connections is waited for after that, so it must not run on:
        each would hold its socket and some 15 KiB for the rest of the keep-alive time."""
        await super()._read_data()
        await self.idle_task.stop()


class Http1(H11Protocol):
    async def _check_protocol(self, event: h11.Request) -> None:
        """Only a client that begins with HTTP/2 gets it: the upgrade is obsolete (RFC 9113, 3.1)."""
        await super()._check_protocol(_without_upgrade(event))

    async def _create_stream(self, request: h11.Request) -> None:
        """There is no WebSocket here, and a wish for it may be left unheard (RFC 9110, 7.8)."""
        await super()._create_stream(_without_upgrade(request))

    async def _send_error_response(self, status_code: int) -> None:
        """For what h11 cannot parse. Its 501 (an unknown transfer encoding) is the client's fault like the others."""
        error = http_error(status_code if status_code < 500 else 400)
        request_id = new_request_id("req")
        log.info("request refused", extra={"request_id": request_id, "status": error.status})
        body = msgspec.json.encode(error.body())
        headers = {
            "content-type": JSON_TYPE,
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": request_id,
            "access-control-allow-origin": "*",
            "access-control-expose-headers": EXPOSED,
        }
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send_h11_event(
            h11.Response(status_code=error.status, headers=pairs + self.config.response_headers("h11"))
        )
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


def _without_upgrade(request: h11.Request) -> h11.Request:
    if not any(name == b"upgrade" for name, _ in request.headers):
        return request
    kept = [(name, value) for name, value in request.headers if name != b"upgrade"]
    return h11.Request(method=request.method, target=request.target, headers=kept, http_version=request.http_version)


class Http2(H2Protocol):
    async def _handle_events(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self._give_back(event)
            else:
                await super()._handle_events([event])
        await self._flush()

    def _give_back(self, event: h2.events.DataReceived) -> None:
        """More of a body whose request has its answer already. Hypercorn looks for its stream, which is gone."""
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        """CONNECT has no path to serve, and a path beyond ASCII is malformed (RFC 9113, 8.1.1): reset the stream."""
        pseudo = {name: value for name, value in request.headers if name.startswith(b":")}
        method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        if method.upper() == b"CONNECT" or not path or not (method + path).isascii():
            self.connection.reset_stream(request.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            return
        await super()._create_stream(request)

    async def _priority_updated(self, event: h2.events.PriorityUpdated) -> None:
        """Priorities are obsolete (RFC 9113, 5.3.2), and their frames can make Hypercorn's tree raise."""
