"""A small Files and Batches API in memory, for tests of the client command: it holds, shuffles, fails and forgets.

Texts that begin with `FAIL` get an error line; `SILENT` none at all. A vector is made of the text's hash.
"""

import base64
import hashlib
import json
import re
import threading
import time
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

WIDTH = 8
MODEL = "some-embedder"
KEY = "batch-key"
Json = dict[str, Any]


def vector_of(text: str, width: int = WIDTH) -> Any:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(width).astype("<f4")


class BatchServer:
    """`with BatchServer() as server:` serves at `server.url`. Every attribute may be changed while it runs."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Json] = {}
        self.hold_after: int | None = None  #: lines of a batch that are done before it stays in progress
        self.shuffle = False
        self.max_files: int | None = None  #: more are refused with 507
        self.broken_downloads = 0  #: so many end in the middle
        self.away = 0  #: so many requests are answered 503
        self.refuse_with: str | None = None  #: batches fail validation with that message
        self.as_base64 = True
        self.max_seen = 0  #: files at a time
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.lock = threading.RLock()

    def __enter__(self) -> "BatchServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def add_file(self, data: bytes) -> str:
        file_id = f"file-{len(self.files) + len(self.batches) * 1000 + time.monotonic_ns()}"
        self.files[file_id] = data
        self.max_seen = max(self.max_seen, len(self.files))
        return file_id

    def create(self, file_id: str) -> Json:
        batch = {
            "id": f"batch_{len(self.batches)}",
            "object": "batch",
            "endpoint": "/v1/embeddings",
            "input_file_id": file_id,
            "completion_window": "24h",
            "status": "in_progress",
            "created_at": int(time.time()),
            "output_file_id": None,
            "error_file_id": None,
            "errors": None,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
        }
        self.batches[str(batch["id"])] = batch
        if self.refuse_with:
            batch |= {"status": "failed", "errors": {"data": [{"line": 1, "message": self.refuse_with}]}}
        return batch

    def advance(self, batch: Json) -> None:
        """As far as it may go."""
        if batch["status"] in ("in_progress", "cancelling"):
            lines = self.files[batch["input_file_id"]].splitlines()
            batch["request_counts"]["total"] = len(lines)
            is_cancelled = batch["status"] == "cancelling"
            if self.hold_after is not None and not is_cancelled:
                batch["request_counts"]["completed"] = min(self.hold_after, len(lines))
                return
            self._end(batch, lines[: self.hold_after] if is_cancelled else lines)
            batch["status"] = "cancelled" if is_cancelled else "completed"

    def _end(self, batch: Json, lines: list[bytes]) -> None:
        good, bad = [], []
        for request in map(json.loads, lines):
            text, width = request["body"]["input"], request["body"].get("dimensions", WIDTH)
            line: Json = {"id": "batch_req_1", "custom_id": request["custom_id"], "response": None, "error": None}
            if text.startswith("FAIL"):
                body: Json = {"error": {"message": "the model chokes on it", "type": "server_error", "code": None}}
                bad.append(line | {"response": {"status_code": 500, "request_id": "r", "body": body}})
            elif not text.startswith("SILENT"):
                row = vector_of(text, width)
                value = base64.b64encode(row.tobytes()).decode() if self.as_base64 else row.tolist()
                body = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": value}]}
                good.append(line | {"response": {"status_code": 200, "request_id": "r", "body": body}})
        if self.shuffle:
            good.reverse()
        for name, answers in (("output_file_id", good), ("error_file_id", bad)):
            if answers:
                batch[name] = self.add_file(b"".join(json.dumps(answer).encode() + b"\n" for answer in answers))
        batch["request_counts"] |= {"completed": len(good), "failed": len(lines) - len(good)}


def _handler(server: BatchServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def _send(self, status: int, value: Any) -> None:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if server.broken_downloads and self.path.endswith("/content"):
                server.broken_downloads -= 1
                data = data[: len(data) // 2]
                self.close_connection = True
            self.wfile.write(data)

        def _refuse(self, status: int, message: str) -> None:
            self._send(status, {"error": {"message": message, "type": "x", "param": None, "code": None}})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data

        def _handle(self) -> None:
            body = self._body()
            with server.lock:
                if server.away:
                    server.away -= 1
                    self._refuse(503, "the server starts")
                elif self.headers.get("Authorization") != f"Bearer {KEY}":
                    self._refuse(401, "wrong key")
                else:
                    self._route(f"{self.command} {self.path.partition('?')[0]}", body)

        def _route(self, route: str, body: bytes) -> None:
            if route == "GET /v1/models":
                models = [{"id": "a-chat", "meta": {"kind": "chat"}}, {"id": MODEL, "meta": {"kind": "embedding"}}]
                return self._send(200, {"object": "list", "data": models})
            if route == "POST /v1/files":
                if server.max_files is not None and len(server.files) >= server.max_files:
                    return self._refuse(507, "the disk is full")
                return self._send(200, {"id": server.add_file(_uploaded(self.headers["Content-Type"], body))})
            if found := re.fullmatch(r"(GET|DELETE) /v1/files/([^/]+)(/content)?", route):
                if found[2] not in server.files:
                    return self._refuse(404, "no such file")
                data = server.files[found[2]]
                if found[1] == "DELETE":
                    del server.files[found[2]]
                return self._send(200, data if found[1] == "GET" else {"deleted": True})
            if route == "POST /v1/batches":
                return self._send(200, server.create(json.loads(body)["input_file_id"]))
            if route == "GET /v1/batches":
                after = re.search(r"after=([^&]+)", self.path)
                found_batches = [] if after else list(reversed(server.batches.values()))
                return self._send(200, {"object": "list", "data": found_batches, "has_more": False})
            if found := re.fullmatch(r"(GET|POST) /v1/batches/([^/]+)(/cancel)?", route):
                batch = server.batches.get(found[2])
                if batch is None:
                    return self._refuse(404, "no such batch")
                if found[3] and batch["status"] == "in_progress":
                    batch["status"] = "cancelling"
                elif not found[3]:
                    server.advance(batch)
                return self._send(200, batch)
            return self._refuse(404, "unknown url")

        def do_GET(self) -> None:
            self._handle()

        def do_POST(self) -> None:
            self._handle()

        def do_DELETE(self) -> None:
            self._handle()

    return Handler


def _uploaded(content_type: str, body: bytes) -> bytes:
    """The part `file` of a multipart body."""
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    parts = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
    assert parts["purpose"].get_content().strip() == "batch"
    data = parts["file"].get_payload(decode=True)
    assert isinstance(data, bytes)
    return data
