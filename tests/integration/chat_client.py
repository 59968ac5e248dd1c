"""Clients that run in the background and can leave at any moment, and what a stack's queue holds."""

import http.client
import json
import secrets
import socket
import threading
import time
from typing import Any

import msgspec

from tasks.contracts import Lane, WorkerState, models_key, queue_name, worker_key
from tests.stack import CHAT, EMBED, Stack
from tests.support import wait_until

FOREVER = "Never stop, please."
LONG_PROMPT = "word " * 300  #: the fake engine takes LIS_FAKE_PREFILL for it


class Call:
    """One request on a connection and a thread of its own, sent on construction."""

    def __init__(self, stack: Stack, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: dict[str, Any] = {}
        self.texts: list[str] = []  #: of each delta that has some
        self.error: dict[str, Any] | None = None
        self.has_done = False  #: `[DONE]` came
        self.broken: Exception | None = None
        self.sent_s = time.monotonic()
        self.ended_s = 0.0
        self._head = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=90)
        self._connection.connect()
        self._socket = self._connection.sock
        request = {"Authorization": f"Bearer {stack.key}", "Content-Type": "application/json", **(headers or {})}
        self._connection.request("POST", path, json.dumps(body), request)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        if self.body:
            return str(self.body["choices"][0]["message"]["content"])
        return "".join(self.texts)

    @property
    def took_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout_s: float = 60.0) -> "Call":
        """Until it is over, in whatever way."""
        wait_until(self.is_over, "the request is over", timeout_s)
        return self

    def wait_head(self, timeout_s: float = 20.0) -> "Call":
        wait_until(self._head.is_set, "the answer's head", timeout_s)
        return self

    def wait_text(self, count: int = 1) -> "Call":
        wait_until(lambda: len(self.texts) >= count or self.is_over(), "some text", 20.0)
        assert len(self.texts) >= count, (self.status, self.error, self.body, self.broken)
        return self

    def leave(self) -> None:
        """Close the connection, whatever it is at."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self.wait()

    def begun(self) -> "Call":
        """Once it runs, so that what is sent next stands behind it."""
        self.wait_text()
        return self

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_over():
            self.leave()

    def _run(self) -> None:
        try:
            with self._connection.getresponse() as response:
                self.status = response.status
                self.headers = {name.lower(): value for name, value in response.getheaders()}
                self._head.set()
                if self.headers.get("content-type", "").startswith("text/event-stream"):
                    for line in response:
                        self._take(line)
                else:
                    self.body = json.loads(response.read())
                    self.error = self.body.get("error")
        except (OSError, http.client.HTTPException, ValueError) as exc:
            self.broken = exc
        finally:
            self.ended_s = time.monotonic()
            self._connection.close()

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data: "):
            return
        if line.strip() == b"data: [DONE]":
            self.has_done = True
            return
        data = json.loads(line[len(b"data: ") :])
        if "error" in data:
            self.error = data["error"]
        for choice in data.get("choices", []):
            if text := choice["delta"].get("content"):
                self.texts.append(text)


def assert_told(call: Call, since_s: float, within_s: float) -> None:
    """Its worker was lost: an error frame, no `[DONE]`, in time."""
    call.wait()
    assert call.error is not None, (call.texts[-3:], call.broken)
    assert call.error["code"] == "worker_lost"
    assert not call.has_done
    assert call.ended_s - since_s < within_s


def chat(
    stack: Stack,
    text: str,
    *,
    stream: bool = True,
    max_tokens: int | None = None,
    headers: dict[str, str] | None = None,
) -> Call:
    body: dict[str, Any] = {"model": CHAT, "messages": [{"role": "user", "content": text}], "stream": stream}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return Call(stack, "/v1/chat/completions", body, headers)


def embed(stack: Stack, texts: list[str], headers: dict[str, str] | None = None) -> Call:
    return Call(stack, "/v1/embeddings", {"model": EMBED, "input": texts}, headers)


def worker_state(stack: Stack) -> WorkerState | None:
    with stack.redis() as client:
        value = client.get(worker_key(stack.lis_env["LIS_WORKER_NAME"]))
    return msgspec.msgpack.decode(value, type=WorkerState) if isinstance(value, bytes) else None


def is_running(stack: Stack, count: int = 1) -> bool:
    """`count` requests hold a slot."""
    state = worker_state(stack)
    return state is not None and len(state.running) == count


def queue_len(stack: Stack) -> int:
    """Messages in the interactive queue."""
    with stack.redis() as client:
        return int(client.llen(queue_name(Lane.INTERACTIVE, models_key(CHAT, EMBED))))


def unacked(stack: Stack) -> int:
    """Messages a worker has taken and not yet acknowledged."""
    with stack.redis() as client:
        return int(client.hlen(f"lis:unacked:{stack.lis_env['LIS_WORKER_NAME']}"))


def wait_idle(stack: Stack) -> None:
    def is_idle() -> bool:
        return is_running(stack, 0) and queue_len(stack) == 0 and unacked(stack) == 0

    wait_until(is_idle, "nothing runs and nothing waits", 30.0)


def assert_served(stack: Stack) -> None:
    """A chat works, and is answered with its own answer."""
    mark = f"MARK-{secrets.token_hex(4)}"
    call = chat(stack, mark, stream=False, max_tokens=3).wait()
    assert call.status == 200, call.body or call.broken
    assert call.text.startswith(mark)
