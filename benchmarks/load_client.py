"""Many cheap HTTP clients in a process of their own: raw sockets, nothing is parsed before the end.

`Clients` starts the process and gives it commands, a JSON object on each line; it answers with one line each.
A client's bytes are kept as they came, so that thousands of them, or a flood of tokens, cost the machine little.
"""

import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, cast

CONNECT_TIMEOUT_S = 30.0


class Client(asyncio.Protocol):
    """One connection, one request, and what came back."""

    def __init__(self, request: bytes, is_timed: bool = False) -> None:
        """`is_timed`: note when each piece came."""
        self._request = request
        self._is_timed = is_timed
        self._transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.pieces: list[tuple[int, int]] = []  #: monotonic ns, and the bytes received until then
        self.sent_s = self.first_s = self.last_s = 0.0
        self.silence_s = 0.0  #: the longest between two pieces
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.sent_s = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        self.silence_s = max(self.silence_s, now_s - (self.last_s or now_s))
        self.last_s = now_s
        self.first_s = self.first_s or now_s
        self.received += data
        if self._is_timed:
            self.pieces.append((time.monotonic_ns(), len(self.received)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.ended.set()


class SlowClient(Client):
    """Reads `bytes_per_s`, a piece each second, with the smallest receive buffer that the system gives."""

    def __init__(self, request: bytes, bytes_per_s: int, port: int) -> None:
        super().__init__(request)
        self._bytes_per_s = bytes_per_s
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._socket.setblocking(False)
        self._port = port
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        await loop.sock_sendall(self._socket, self._request)
        self._task = loop.create_task(self._read())

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._socket, self._bytes_per_s):
            self.data_received(data)
            await asyncio.sleep(1.0)
        self.ended.set()

    def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._socket.close()
        self.ended.set()


@dataclass
class Report:
    """What the clients of one group have got."""

    clients: int = 0
    refused_connections: int = 0
    ended: int = 0
    statuses: dict[str, int] = field(default_factory=dict)  #: by status and error code; "none": no head came
    whole: int = 0  #: streams with `[DONE]`, and bodies that are no error
    broken: int = 0  #: ended without `[DONE]`
    with_retry_after: int = 0  #: of the 503s
    completion_tokens: int = 0  #: as the usage chunks say
    words: int = 0  #: in the texts
    received_bytes: int = 0
    took_s: float = 0.0  #: from the first request to the last byte of an answer
    silence_s: float = 0.0  #: the longest in any answer, between two pieces
    rates: list[float] = field(default_factory=list)  #: words per second of each whole stream
    delays_ms: list[float] = field(default_factory=list)  #: of each piece of a `FAKE-CLOCK` answer


class Group:
    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.refused = 0

    async def start(self, command: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        request, port, bytes_per_s = command["request"].encode(), command["port"], command["bytes_per_s"]

        async def connect() -> None:
            client: Client
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    if bytes_per_s:
                        client = SlowClient(request, bytes_per_s, port)
                        await client.connect()
                    else:
                        client = Client(request, command["is_timed"])
                        await loop.create_connection(lambda: client, "127.0.0.1", port)
            except OSError:
                self.refused += 1
            else:
                self.clients.append(client)

        await asyncio.gather(*(connect() for _ in range(command["n"])))

    def report(self) -> Report:
        report = Report(clients=len(self.clients), refused_connections=self.refused)
        statuses: Counter[str] = Counter()
        for client in self.clients:
            report.ended += client.ended.is_set()
            report.received_bytes += len(client.received)
            _add(report, statuses, client)
        report.statuses = dict(statuses)
        begun = [client for client in self.clients if client.first_s]
        if begun:
            report.took_s = max(client.last_s for client in begun) - min(client.sent_s for client in begun)
        report.silence_s = max((client.silence_s for client in begun), default=0.0)
        return report


def _add(report: Report, statuses: Counter[str], client: Client) -> None:
    head, _, body = bytes(client.received).partition(b"\r\n\r\n")
    if not body:
        statuses["none"] += 1
        return
    status = head.split(b" ", 2)[1].decode()
    if b"text/event-stream" not in head:
        try:
            error = json.loads(body).get("error")
        except ValueError:
            report.broken += 1
            return
        statuses[f"{status} {error['code']}" if error else status] += 1
        report.with_retry_after += b"\r\nretry-after:" in head.lower()
        report.whole += error is None
        return
    statuses[status] += 1
    tokens = at = 0
    arrivals = iter(client.pieces)
    seen_ns, seen = 0, 0
    text = ""
    for line in body.split(b"\n"):
        at += len(line) + 1
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        for choice in chunk.get("choices", []):
            piece = choice["delta"].get("content") or ""
            text += piece
            while client.pieces and seen < len(head) + 4 + at - 1:
                seen_ns, seen = next(arrivals, (seen_ns, 1 << 62))
            if client.pieces:  # tokens that left together came together
                report.delays_ms += [(seen_ns - int(word)) / 1e6 for word in piece.split() if word.isdigit()]
        tokens += (chunk.get("usage") or {}).get("completion_tokens", 0)
    words = len(text.split())
    report.words += words
    report.completion_tokens += tokens
    is_whole = b"data: [DONE]" in body
    report.whole += is_whole
    report.broken += client.ended.is_set() and not is_whole
    if is_whole and client.last_s > client.first_s:
        report.rates.append(words / (client.last_s - client.first_s))


async def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    groups: dict[str, Group] = {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        group = groups.setdefault(command["group"], Group())
        match command["op"]:
            case "start":
                await group.start(command)
            case "wait":
                waits = (client.ended.wait() for client in group.clients)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.gather(*waits), command["timeout_s"])
            case "leave":
                for client in group.clients:
                    client.leave()
            case "forget":
                groups[command["group"]] = Group()
        answer = asdict(group.report()) if command["wants_report"] else {}
        print(json.dumps(answer), flush=True)


class Clients:
    """`with Clients(port, key) as clients`: the process of the clients, in named groups."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        command = [sys.executable, "-m", "benchmarks.load_client"]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.kill()
        self._popen.communicate()

    def start(self, group: str, n: int, body: dict[str, Any], *, bytes_per_s: int = 0, is_timed: bool = False) -> None:
        """Add `n` clients that each send a chat completion; returns when they are connected."""
        data = json.dumps(body)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        options = {"bytes_per_s": bytes_per_s, "is_timed": is_timed}
        self._do("start", group, wants_report=False, n=n, port=self._port, request=head + data, **options)

    def wait(self, group: str, timeout_s: float) -> Report:
        """Until all of the group have ended, for at most `timeout_s`."""
        return Report(**self._do("wait", group, timeout_s=timeout_s))

    def report(self, group: str) -> Report:
        return Report(**self._do("report", group))

    def leave(self, group: str) -> Report:
        """Close their connections at once."""
        return Report(**self._do("leave", group))

    def forget(self, group: str) -> None:
        self._do("forget", group, wants_report=False)

    def _do(self, op: str, group: str, *, wants_report: bool = True, **options: Any) -> dict[str, Any]:
        if self._popen.stdin is None or self._popen.stdout is None:
            raise RuntimeError("the clients have no pipes")
        self._popen.stdin.write(json.dumps({"op": op, "group": group, "wants_report": wants_report, **options}) + "\n")
        self._popen.stdin.flush()
        answer: dict[str, Any] = json.loads(self._popen.stdout.readline())
        return answer


if __name__ == "__main__":
    asyncio.run(main())
