"""Idempotency keys on a whole service: two API processes, one of which dies or starts anew, and the OpenAI SDK."""

import contextlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.integration.chat_client import FOREVER, is_running, wait_idle
from tests.service_calls import CHATS, EMBEDDINGS, POSTS, chat_body
from tests.stack import EMBED, FAKE_ENV, Process, Stack, free_port
from tests.support import wait_until

STREAM = chat_body("Say hello.", stream=True, max_tokens=40)
ENDLESS = chat_body(FOREVER, stream=True, max_tokens=1000)


class Pair:
    """A service with a second API process. `posts[0]` goes to the first."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.port = free_port()
        self.other = self._start()

    def _start(self) -> Process:
        env = self.stack.env() | {"LIS_PORT": str(self.port)}
        return Process([sys.executable, "-m", "api.serve"], env, self.stack.dir / "api.log")

    def base(self, index: int) -> str:
        return f"http://127.0.0.1:{(self.stack.port, self.port)[index]}"

    def restart_other(self) -> None:
        self.other.stop()
        self.other = self._start()
        self.wait_ready()

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            try:
                return httpx.get(self.base(1) + "/health", timeout=2.0).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(is_ready, "the second API process is ready", 30.0)

    def client(self, index: int) -> httpx.Client:
        return httpx.Client(
            base_url=self.base(index), timeout=30.0, headers={"Authorization": f"Bearer {self.stack.key}"}
        )

    def post(self, index: int, body: Any, key: str, path: str = CHATS) -> httpx.Response:
        with self.client(index) as client:
            return client.post(path, json=body, headers={"Idempotency-Key": key})

    @contextlib.contextmanager
    def opened(self, index: int, body: Any, key: str) -> Iterator[httpx.Response]:
        with (
            self.client(index) as client,
            client.stream("POST", CHATS, json=body, headers={"Idempotency-Key": key}) as response,
        ):
            assert response.status_code == 200, response.read()
            yield response


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Stack({**FAKE_ENV, "LIS_FAKE_TOKEN": "0.02", "LIS_BUSY_TIMEOUT": "20"}, keep=True) as stack:
        pair = Pair(stack)
        try:
            pair.wait_ready()
            yield pair
        finally:
            pair.other.stop()


@pytest.fixture
def key(pair: Pair) -> Iterator[str]:
    wait_idle(pair.stack)
    yield secrets.token_hex(8)
    wait_idle(pair.stack)


def same(first: httpx.Response, second: httpx.Response) -> None:
    assert second.status_code == first.status_code == 200, second.text
    assert second.content == first.content
    for name in ("content-type", "x-request-id"):
        assert second.headers[name] == first.headers[name]
    assert second.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(("path", "body"), [*POSTS, (CHATS, STREAM)])
def test_an_answer_outlives_its_api_process(pair: Pair, key: str, path: str, body: dict[str, Any]) -> None:
    before = pair.stack.started_count()
    first = pair.post(1, body, key, path)
    assert "idempotent-replayed" not in first.headers
    if path == CHATS:
        pair.restart_other()
        same(first, pair.post(1, body, key, path))
    same(first, pair.post(0, body, key, path))
    assert pair.stack.started_count() - before == (path != EMBEDDINGS)


def test_ten_at_once_run_once(pair: Pair, key: str) -> None:
    before = pair.stack.started_count()
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda index=index: answers.append(pair.post(index % 2, STREAM, key)))
        for index in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 10
    assert len({answer.content for answer in answers}) == 1
    assert pair.stack.started_count() - before == 1


def test_a_stream_goes_on_for_a_reader_in_the_other_process_alone(pair: Pair, key: str) -> None:
    before = pair.stack.started_count()
    with pair.opened(1, STREAM, key) as second_to_be:
        pieces = second_to_be.iter_bytes()
        next(pieces)
        with pair.opened(0, STREAM, key) as attached:
            rest = attached.iter_bytes()
            seen = next(rest)
            second_to_be.close()
            seen += b"".join(rest)
    assert seen.endswith(b"data: [DONE]\n\n")
    assert pair.post(1, STREAM, key).content == seen
    assert pair.stack.started_count() - before == 1


def test_the_slot_is_free_when_the_last_reader_has_left(pair: Pair, key: str) -> None:
    with pair.opened(1, ENDLESS, key) as first, pair.opened(0, ENDLESS, key) as second:
        pieces = first.iter_bytes(), second.iter_bytes()  # held: one that is forgotten closes its connection
        for each in pieces:
            next(each)
        wait_until(lambda: has_readers(pair, 1), "the second has joined")
        first.close()
        wait_until(lambda: is_running(pair.stack), "it runs on")
        second.close()
        wait_until(lambda: is_running(pair.stack, 0), "the slot is free", 3.0)


def test_readers_hear_of_a_killed_process_within_6_s(pair: Pair, key: str) -> None:
    waiting = chat_body("Say something else.", stream=False)
    answers: list[httpx.Response] = []
    with pair.opened(1, ENDLESS, key) as first, pair.opened(0, ENDLESS, key) as second:
        pieces, rest = first.iter_bytes(), second.iter_bytes()
        next(pieces)
        next(rest)
        behind = threading.Thread(target=lambda: _lose(pair, 1, waiting, key + "-2"))
        behind.start()
        wait_until(lambda: has_runs(pair, 2), "the second waits")
        attached = threading.Thread(target=lambda: answers.append(pair.post(0, waiting, key + "-2")))
        attached.start()
        wait_until(lambda: has_readers(pair, 2), "both are read")
        pair.other.kill()
        killed_s = time.monotonic()
        end = b"".join(rest)
        attached.join()
        assert time.monotonic() - killed_s < 6.5
    behind.join()
    assert b'"error"' in end
    assert not end.endswith(b"[DONE]\n\n")
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "queue_unavailable"
    pair.other = pair._start()
    pair.wait_ready()


def test_a_restart_of_redis_in_mid_stream_is_not_noticed(pair: Pair, key: str) -> None:
    body = STREAM | {"max_tokens": 150}
    before = pair.stack.started_count()
    with pair.opened(1, body, key) as first:
        pieces = first.iter_bytes()
        seen = next(pieces)
        pair.stack.restart_broker()
        seen += b"".join(pieces)
    assert seen.endswith(b"data: [DONE]\n\n")
    wait_until(lambda: not has_runs(pair, 1), "it is recorded")
    assert pair.post(0, body, key).content == seen
    assert pair.stack.started_count() - before == 1


def _lose(pair: Pair, index: int, body: Any, key: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        pair.post(index, body, key)


def has_runs(pair: Pair, count: int) -> bool:
    with pair.stack.redis() as client:
        values = client.mget(client.keys("lis:idem:run:*"))
    return sum(b"running" in value for value in values if isinstance(value, bytes)) == count


def has_readers(pair: Pair, count: int) -> bool:
    with pair.stack.redis() as client:
        return len(client.keys("lis:idem:readers:*")) == count


class Dropper:
    """A TCP proxy that swallows the first answer and closes its connection, as a bad network does."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.dropped = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._carry, args=self._listener.accept()[:1], daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server, contextlib.suppress(OSError):
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            while data := server.recv(65536):
                if not self.dropped:
                    self.dropped += 1
                    break
                client.sendall(data)
            for end in (client, server):  # closing alone does not wake the thread that reads
                end.shutdown(socket.SHUT_RDWR)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("path", [CHATS, EMBEDDINGS])
def test_the_sdk_s_retry_after_a_dropped_answer_runs_nothing_again(pair: Pair, key: str, path: str) -> None:
    dropper = Dropper(pair.port)
    before = pair.stack.started_count()
    named = {"Idempotency-Key": key}
    base = f"http://127.0.0.1:{dropper.port}/v1"
    with openai.OpenAI(base_url=base, api_key=pair.stack.key, max_retries=2) as client:
        if path == CHATS:
            body = chat_body("Say hello.", max_tokens=5)
            answer = client.chat.completions.with_raw_response.create(**body, extra_headers=named)
            assert answer.parse().choices[0].message.content
        else:
            vectors = client.embeddings.with_raw_response.create(model=EMBED, input="hi", extra_headers=named)
            assert vectors.parse().data[0].embedding
            answer = vectors
    dropper.close()
    assert dropper.dropped == 1
    assert answer.headers["idempotent-replayed"] == "true"
    assert pair.stack.started_count() - before == (path == CHATS)
