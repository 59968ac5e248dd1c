"""A Hugging Face Hub on loopback: `resolve` with Range and redirects, the file list, refusals, and faults on demand."""

import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, cast

CHUNK_BYTES = 65_536


class Request(NamedTuple):
    method: str
    path: str
    range: str | None
    authorization: str | None


class Faults:
    """What goes wrong. Change it at any time; a request looks at it while it runs."""

    def __init__(self) -> None:
        self.break_at: int | None = None  #: byte of the file before which every connection is cut
        self.breaks_left = 1_000_000  #: how many connections `break_at` cuts
        self.hold_at: int | None = None  #: byte of the file before which the server waits for `release`
        self.hold_heads = False  #: HEAD requests wait for `release`
        self.release = threading.Event()
        self.statuses: list[int] = []  #: answered instead, to the next requests
        self.corrupt_downloads = 0  #: how many whole downloads have a byte flipped
        self.ignore_range = False
        self.claimed_size: int | None = None  #: x-linked-size instead of the true one


class HubServer:
    """Serves `files` ({"owner/repo": {"name.gguf": content}}) until `close`. Counts the bytes it sent."""

    def __init__(self, files: Mapping[str, Mapping[str, bytes]], redirect_to: "HubServer | None" = None) -> None:
        self.files = {repo: dict(names) for repo, names in files.items()}
        self.gated: set[str] = set()
        self.accepted_token = "hf_good"
        self.faults = Faults()
        self.requests: list[Request] = []
        self.served_bytes = 0
        self.redirect_to = redirect_to  #: another server, as the Hub's storage is
        self._lock = threading.Lock()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.faults.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, n_bytes: int) -> None:
        with self._lock:
            self.served_bytes += n_bytes

    def take_break(self) -> bool:
        with self._lock:
            self.faults.breaks_left -= 1
            return self.faults.breaks_left >= 0

    def take_corruption(self) -> bool:
        with self._lock:
            self.faults.corrupt_downloads -= 1
            return self.faults.corrupt_downloads >= 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: HubServer) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubServer:
        return cast(_Server, self.server).hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        if self.hub.faults.hold_heads:
            self.hub.faults.release.wait()
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.hub
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append(Request(self.command, path, self.headers["Range"], self.headers["Authorization"]))
        if hub.faults.statuses:
            self._send(hub.faults.statuses.pop(0), b"")
            return
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        match = listing or resolve
        if not match or match[1] not in hub.files:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif match[1] in hub.gated and self.headers["Authorization"] != f"Bearer {hub.accepted_token}":
            self._refuse(403 if self.headers["Authorization"] else 401, "GatedRepo", "Access is restricted.")
        elif listing:
            self._send_list(hub.files[match[1]])
        elif resolve:
            self._resolve(hub.files[match[1]], resolve[2])

    def _send_list(self, names: Mapping[str, bytes]) -> None:
        entries = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in names.items()]
        self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def _resolve(self, names: Mapping[str, bytes], name: str) -> None:
        hub = self.hub
        if name not in names:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        content = names[name]
        etag = hashlib.sha256(content).hexdigest()
        size = hub.faults.claimed_size or len(content)
        headers = {"X-Repo-Commit": "c" * 40, "X-Linked-Size": str(size), "X-Linked-ETag": f'"{etag}"', "ETag": '"s3"'}
        if hub.redirect_to is not None:
            self._send(302, b"", headers | {"Location": f"{hub.redirect_to.url}{self.path}"})
        else:
            self._send_file(content, headers)

    def _send_file(self, content: bytes, headers: dict[str, str]) -> None:
        faults = self.hub.faults
        start, status = 0, 200
        if not faults.ignore_range and (asked := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")):
            start, status = int(asked[1]), 206
            if start >= len(content):
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if self.command == "GET" and start == 0 and self.hub.take_corruption():
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            self._send_bytes(content, start)

    def _send_bytes(self, content: bytes, start: int) -> None:
        faults = self.hub.faults
        while start < len(content):
            marks = [at for at in (faults.break_at, faults.hold_at) if at is not None and at > start]
            if faults.hold_at == start:
                faults.release.wait()
            if faults.break_at is not None and start >= faults.break_at and self.hub.take_break():
                self.close_connection = True
                return
            data = content[start : min([start + CHUNK_BYTES, *marks])]
            self.wfile.write(data)
            self.hub.count(len(data))
            start += len(data)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, json.dumps({"error": message}).encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextlib.contextmanager
def serving(files: Mapping[str, Mapping[str, bytes]], redirect_to: HubServer | None = None) -> Iterator[HubServer]:
    hub = HubServer(files, redirect_to)
    try:
        yield hub
    finally:
        hub.close()
