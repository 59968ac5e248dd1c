"""Reported bugs of HTTP itself, on the whole service; test_http_edges.py has those that one process shows."""

import gzip
import json
import socket
import zlib
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.service_calls import CHATS, EMBEDDINGS, POSTS, REFUSED, Refused, Service, chat_body, error_of, good
from tests.stack import CHAT, EMBED, KEY
from tests.support import wait_until

MIB = 1024 * 1024


def head(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", *headers, "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "Application/JSON;charset=UTF-8", 'application/json; x="a;b"', "text/json"],
)
def test_parameters_of_the_content_type_change_nothing(fake: Service, content_type: str) -> None:
    """HTTP-01"""
    for path, body in POSTS:
        good(fake.post(path, body, **{"Content-Type": content_type}))


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{CHAT}", f"/v1/models/{EMBED}", "/health", "/v1/models/"])
def test_what_is_read_is_labelled_as_json(fake: Service, path: str) -> None:
    """HTTP-03"""
    assert good(fake.client.get(path)).headers["content-type"] == "application/json"


def test_every_answer_is_labelled_as_json(fake: Service) -> None:
    """HTTP-03"""
    for path, body in POSTS:
        assert good(fake.post(path, body)).headers["content-type"] == "application/json"


@pytest.mark.parametrize("change", [lambda p: p + "/", lambda p: p + "//", lambda p: "/" + p, lambda p: p[3:] + "/"])
def test_slashes_too_many_never_become_a_redirect(fake: Service, change: Callable[[str], str]) -> None:
    """HTTP-04: a client that follows a redirect turns its POST into a GET."""
    for path, body in POSTS:
        answer = good(fake.post(change(path), body)).json()
        assert answer.get("choices") or answer.get("data") or answer.get("output")
    good(fake.client.get(change("/v1/models")))


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: f"HTTP-05 HTTP-14 {refused.name}")
def test_status_and_error_object_agree(fake: Service, refused: Refused) -> None:
    with fake.nothing_starts():
        error = error_of(refused.send(fake), refused.status, refused.code)
    assert error["message"]
    assert error["type"] == ("authentication_error" if refused.status == 401 else "invalid_request_error")


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{CHAT}", "/health", "/v1/nope", CHATS])
def test_answer_to_head_has_no_body_and_the_next_one_is_intact(fake: Service, path: str) -> None:
    """HTTP-07"""
    received = fake.exchange(head("HEAD", path) + head("GET", "/v1/models", "Connection: close"))
    first, second, body = received.split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 ")
    assert second.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["object"] == "list"


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)],
)
def test_packed_body_is_unpacked(fake: Service, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """HTTP-09"""
    body = chat_body("Repeat exactly: packed")
    response = fake.post(CHATS, pack(json.dumps(body).encode()), **{"Content-Encoding": encoding})
    assert good(response).json()["choices"][0]["message"]["content"] == "packed"


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        pytest.param("gzip", b"{}", 400, id="HTTP-09 not packed"),
        pytest.param("gzip", gzip.compress(b'{"a": 1}' * 99)[:-9], 400, id="HTTP-09 cut off"),
        pytest.param("gzip", gzip.compress(b" " * (33 * MIB)), 413, id="HTTP-09 unpacks to 33 MiB"),
        pytest.param("", gzip.compress(b"{}"), 400, id="HTTP-09 packed and not said"),
        pytest.param("br", b"{}", 415, id="HTTP-09 brotli"),
        pytest.param("gzip, gzip", gzip.compress(gzip.compress(b"{}")), 415, id="HTTP-09 packed twice"),
    ],
)
def test_body_that_cannot_be_unpacked(fake: Service, encoding: str, data: bytes, status: int) -> None:
    error = error_of(fake.post(CHATS, data, **{"Content-Encoding": encoding}), status)
    assert not any(word in error["message"] for word in ("codec", "zlib", "\\x", "Error"))


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(("Content-Length: " + "9" * 40,), id="HTTP-10 forty digits"),
        pytest.param(("Content-Length: -1",), id="HTTP-10 negative"),
        pytest.param(("Content-Length: 2", "Content-Length: 3"), id="HTTP-10 two lengths"),
        pytest.param(("Transfer-Encoding: nonsense",), id="HTTP-10 unknown coding"),
    ],
)
def test_senseless_framing_is_refused_at_once(fake: Service, headers: tuple[str, ...]) -> None:
    """The connection ends by the server's doing; others are served meanwhile."""
    received = fake.exchange(head("POST", CHATS, "Content-Type: application/json", *headers) + b"{}")
    assert received == b"" or received.split()[1] in (b"400", b"413", b"501")
    fake.assert_alive()


def test_100_mib_chat_is_refused_and_not_kept_in_memory(fake: Service) -> None:
    """HTTP-11"""
    assert fake.stack.api is not None
    process = psutil.Process(fake.stack.api.pid)
    body = json.dumps(chat_body("a" * (100 * MIB))).encode()
    before = process.memory_info().rss
    with fake.nothing_starts():
        error = error_of(fake.post(CHATS, body), 413, "request_too_large")
    assert str(32 * MIB) in error["message"]
    assert process.memory_info().rss - before < 40 * MIB


@pytest.mark.parametrize("path", [CHATS, "/v1/completions"])
def test_proxies_are_told_to_pass_a_stream_on(fake: Service, path: str) -> None:
    """HTTP-12"""
    body = dict(POSTS)[path] | {"stream": True}
    headers = good(fake.post(path, body)).headers
    assert headers["content-type"].split(";")[0] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert "content-encoding" not in headers


def test_first_chunk_arrives_before_the_last_token_is_made(slow: Service) -> None:
    """HTTP-12: nothing on the way here holds a stream back."""
    with slow.opened_stream("Never stop.", max_tokens=1000):
        pass
    slow.assert_alive()


@pytest.mark.parametrize(
    ("given", "status", "limit"),
    [
        pytest.param(["word " * 2000] * 128, 200, "", id="HTTP-15 as many as are taken"),
        pytest.param(["word"] * 129, 400, "128", id="HTTP-15 one more"),
        pytest.param(["word"] * 2048, 400, "128", id="HTTP-15 2048"),
        pytest.param(["word " * 2000] * 4096, 413, str(32 * MIB), id="HTTP-15 40 MB"),
        pytest.param("word " * 100_000, 200, "", id="HTTP-15 one of half a megabyte"),
    ],
)
def test_limits_of_large_calls_are_named(fake: Service, given: Any, status: int, limit: str) -> None:
    response = fake.post(EMBEDDINGS, {"model": EMBED, "input": given})
    if status == 200:
        n_inputs = len(given) if isinstance(given, list) else 1
        assert [item["index"] for item in good(response).json()["data"]] == list(range(n_inputs))
    else:
        assert limit in error_of(response, status)["message"]


def test_connections_that_send_nothing_stop_nobody(fake: Service) -> None:
    """HTTP-10: half a head, half a body, nothing at all."""
    opened = [socket.create_connection(("127.0.0.1", fake.stack.port), timeout=10.0) for _ in range(30)]
    try:
        for number, connection in enumerate(opened):
            connection.sendall((b"", b"POST /v1/chat", head("POST", CHATS, "Content-Length: 99") + b"{")[number % 3])
        fake.assert_alive()
    finally:
        for connection in opened:
            connection.close()
    wait_until(lambda: fake.chat("Say OK.", max_tokens=1).text, "the service answers after they have gone")
