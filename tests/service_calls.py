"""Requests to a running service and the reading of its answers: what the tests of whole services share."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt

from tests.stack import CHAT, EMBED, N_CTX, Stack
from tests.support import wait_until

CHATS, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"
#: every route that takes a body, with a good one
POSTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHATS, {"model": CHAT, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2}),
    (COMPLETIONS, {"model": CHAT, "prompt": "Once upon a", "max_tokens": 2}),
    (EMBEDDINGS, {"model": EMBED, "input": "hello world"}),
    (RESPONSES, {"model": CHAT, "input": "Say hello.", "max_output_tokens": 2}),
)
GREEDY: dict[str, Any] = {"model": CHAT, "temperature": 0, "seed": 7, "max_tokens": 24}

Vectors = npt.NDArray[np.float64]


class Streamed(NamedTuple):
    """A whole event stream of chat or completions."""

    raw: str
    headers: httpx.Headers

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.raw.split("\n") if line.startswith("data: {")]

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices", [])]

    @property
    def pieces(self) -> list[str]:
        """The texts of the chunks that have one."""
        texts = [choice["delta"].get("content") if "delta" in choice else choice["text"] for choice in self.choices]
        return [text for text in texts if text]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finish(self) -> str | None:
        return next((choice["finish_reason"] for choice in self.choices if choice["finish_reason"]), None)

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((chunk["usage"] for chunk in self.chunks if chunk.get("usage")), None)

    @property
    def error(self) -> dict[str, Any] | None:
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)

    @property
    def is_done(self) -> bool:
        return self.raw.endswith("data: [DONE]\n\n")


class Whole(NamedTuple):
    """An answer of chat or completions that did not stream."""

    body: dict[str, Any]

    @property
    def text(self) -> str:
        choice = self.body["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])

    @property
    def finish(self) -> str:
        return str(self.body["choices"][0]["finish_reason"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.body["usage"]["prompt_tokens"])

    @property
    def completion_tokens(self) -> int:
        return int(self.body["usage"]["completion_tokens"])


class Service:
    """One service and a client of it. Generations are greedy and short unless a test says otherwise."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.client = stack.client()

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(path, content=data, headers={"Content-Type": "application/json", **headers})

    def chat(self, said: Any, **fields: Any) -> Whole:
        return Whole(good(self.post(CHATS, chat_body(said, **fields))).json())

    def chat_stream(self, said: Any, **fields: Any) -> Streamed:
        return streamed(self.post(CHATS, chat_body(said, stream=True, **fields)))

    def complete(self, prompt: Any, **fields: Any) -> Whole:
        return Whole(good(self.post(COMPLETIONS, {**GREEDY, "prompt": prompt, **fields})).json())

    def complete_stream(self, prompt: Any, **fields: Any) -> Streamed:
        return streamed(self.post(COMPLETIONS, {**GREEDY, "prompt": prompt, "stream": True, **fields}))

    def embed(self, given: Any, **fields: Any) -> httpx.Response:
        return self.post(EMBEDDINGS, {"model": EMBED, "input": given, **fields})

    def vectors(self, given: Any) -> Vectors:
        """One row per input, in the answer's order."""
        return np.array([item["embedding"] for item in good(self.embed(given)).json()["data"]])

    def assert_alive(self) -> None:
        """Both models answer."""
        assert self.chat("Say OK.", max_tokens=4).text
        assert self.vectors("hello").shape == (1, 384)

    def exchange(self, sent: bytes) -> bytes:
        """All that comes back on one connection, which the client leaves open until the server closes it."""
        with socket.create_connection(("127.0.0.1", self.stack.port), timeout=10.0) as connection:
            connection.sendall(sent)
            received = b""
            while piece := connection.recv(65536):
                received += piece
        return received

    @contextmanager
    def sent(self, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
        """A connection on which this was posted and nothing read."""
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.stack.key}"]
        head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode()
        with socket.create_connection(("127.0.0.1", self.stack.port), timeout=10.0) as connection:
            connection.sendall(head + data)
            yield connection

    def n_running(self) -> int:
        """Requests that workers have, by their last heartbeat."""
        return sum(worker["running"] for worker in self.stack.health()["workers"])

    def n_waiting(self) -> int:
        with self.stack.redis() as client:
            return sum(client.zcard(key) for key in client.keys("lis:lane:*"))

    @contextmanager
    def nothing_starts(self) -> Iterator[None]:
        """What happens within reaches no engine. The chat afterwards is behind whatever was queued."""
        before = self.stack.started_count()
        yield
        self.chat("Say OK.", max_tokens=1)
        wait_until(lambda: self.stack.started_count() > before, "the last chat is in the log")
        assert self.stack.started_count() == before + 1

    @contextmanager
    def opened_stream(self, said: Any, **fields: Any) -> Iterator[Iterator[str]]:
        """The lines of a stream whose first text is there; its connection is closed on leaving."""
        with self.client.stream("POST", CHATS, json=chat_body(said, stream=True, **fields)) as response:
            assert response.status_code == 200, response.read()
            lines = response.iter_lines()
            for line in lines:
                if '"content":"' in line and '"content":""' not in line:
                    break
            yield lines


def chat_body(said: Any, **fields: Any) -> dict[str, Any]:
    """`said` is a user's text, or a list of messages."""
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return {**GREEDY, "messages": messages, **fields}


def good(response: httpx.Response) -> httpx.Response:
    assert response.status_code == 200, response.text[:500]
    return response


def streamed(response: httpx.Response) -> Streamed:
    return Streamed(good(response).content.decode("utf-8"), response.headers)


def error_of(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The error object, whose form is the same for every status."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert code is None or error["code"] == code
    return error


class Refused(NamedTuple):
    """A request that is answered with an error by any service."""

    name: str
    status: int
    code: str | None
    method: str
    path: str
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()

    def send(self, service: Service, **headers: str) -> httpx.Response:
        data = self.body if isinstance(self.body, bytes | None) else json.dumps(self.body).encode()
        sent = {"Content-Type": "application/json", **dict(self.headers), **headers}
        return service.client.request(self.method, self.path, content=data, headers=sent)


HI = chat_body("Say hello.")
LONG = "word " * (2 * N_CTX)
REFUSED = (
    Refused("wrong key", 401, "invalid_api_key", "GET", "/v1/models", headers=(("Authorization", "Bearer wrong"),)),
    Refused("no such route", 404, "unknown_url", "POST", "/v1/nope", HI),
    Refused("prefix twice", 404, "unknown_url", "POST", "/v1/v1/chat/completions", HI),
    Refused("another product's route", 404, "unknown_url", "POST", "/api/chat", HI),
    Refused("route under a route", 404, "unknown_url", "POST", "/v1/responses/chat/completions", HI),
    Refused("unknown model", 404, "model_not_found", "POST", CHATS, HI | {"model": "no-such-model"}),
    Refused("unknown model, stream", 404, "model_not_found", "POST", CHATS, HI | {"model": "x", "stream": True}),
    Refused("unknown model by its route", 404, "model_not_found", "GET", "/v1/models/no-such-model"),
    Refused("wrong method", 405, "method_not_allowed", "GET", CHATS),
    Refused("no JSON", 400, None, "POST", CHATS, b"{"),
    Refused("no body", 400, None, "POST", CHATS, b""),
    Refused("bad field", 400, None, "POST", CHATS, HI | {"temperature": "hot"}),
    Refused("bad field, stream", 400, None, "POST", CHATS, HI | {"temperature": 5, "stream": True}),
    Refused("not served", 400, "unsupported_value", "POST", CHATS, HI | {"functions": [{"name": "f"}]}),
    Refused("too long", 400, "context_length_exceeded", "POST", CHATS, chat_body(LONG)),
    Refused("too long, stream", 400, "context_length_exceeded", "POST", CHATS, chat_body(LONG, stream=True)),
    Refused("too long a text", 400, "context_length_exceeded", "POST", COMPLETIONS, {**GREEDY, "prompt": LONG}),
    Refused("no input", 400, None, "POST", EMBEDDINGS, {"model": EMBED, "input": []}),
    Refused("a form", 415, "unsupported_media_type", "POST", CHATS, b"a=b", (("Content-Type", "text/plain"),)),
    Refused("odd encoding", 415, "unsupported_media_type", "POST", CHATS, b"{}", (("Content-Encoding", "br"),)),
    Refused("too large", 413, "request_too_large", "POST", CHATS, b" " * (32 * 1024 * 1024 + 1)),
)
