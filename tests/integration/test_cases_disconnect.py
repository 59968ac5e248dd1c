"""Reported bugs of clients that leave, on the whole service.

The engine is slow: what is left behind would run for 50 s, and a request that finds no free slot is refused after 2 s.
So that the next one is answered proves that the slot was freed.
"""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.service_calls import CHATS, COMPLETIONS, EMBEDDINGS, GREEDY, Service, chat_body
from tests.stack import EMBED
from tests.support import wait_until

ENDLESS = chat_body("Never stop.", max_tokens=1000)
LONG_PREFILL = chat_body("word " * 300, max_tokens=1000)
STOP_S = 1.5  #: a cancelled request ends within a step of 0.05 s, or a chunk of a prefill


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    """Gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


def half_close(connection: socket.socket) -> None:
    """Nothing more to say; some clients do so and still read, so it is closed after it."""
    connection.shutdown(socket.SHUT_WR)
    connection.close()


LEAVES = pytest.mark.parametrize("leave", [close, reset, half_close])


@LEAVES
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [(CHATS, ENDLESS), (COMPLETIONS, {**GREEDY, "prompt": "Never stop.", "max_tokens": 1000})]
)
def test_generation_of_a_client_that_left_ends(
    slow: Service, path: str, body: dict[str, Any], stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    """DIS-01"""
    before = slow.stack.started_count()
    with slow.sent(path, body | {"stream": stream}) as connection:
        wait_until(lambda: slow.stack.started_count() == before + 1, "it runs")
        leave(connection)
    assert slow.chat("Say OK.", max_tokens=2).text


def test_stream_left_after_some_chunks_ends(slow: Service) -> None:
    """DIS-01"""
    with slow.opened_stream("Never stop.", max_tokens=1000) as lines:
        for _ in range(6):
            next(lines)
    assert slow.chat("Say OK.", max_tokens=2).text


@LEAVES
@pytest.mark.parametrize("stream", [False, True])
def test_prefill_of_a_client_that_left_ends(
    slow: Service, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    """DIS-03"""
    before = slow.stack.started_count()
    with slow.sent(CHATS, LONG_PREFILL | {"stream": stream}) as connection:
        wait_until(lambda: slow.stack.started_count() == before + 1, "it runs")
        leave(connection)
    assert slow.chat("Say OK.", max_tokens=2).text


def test_embedding_of_a_client_that_left_ends(slow: Service) -> None:
    """DIS-03: of its 20 long texts each would take 2 s."""
    with slow.sent(EMBEDDINGS, {"model": EMBED, "input": ["word " * 300] * 20}) as connection:
        wait_until(lambda: slow.n_running() == 1, "it runs")
        close(connection)
    assert slow.vectors("a").shape == (1, 384)


@LEAVES
def test_waiting_requests_whose_clients_left_never_run(slow: Service, leave: Callable[[socket.socket], None]) -> None:
    """DIS-04"""
    before = slow.stack.started_count()
    with slow.opened_stream("Never stop.", max_tokens=1000) as lines:
        for number in range(10):
            with slow.sent(CHATS, ENDLESS | {"stream": number % 2 == 0}) as connection:
                wait_until(lambda: slow.n_waiting() == 1, "it waits")
                leave(connection)
            wait_until(lambda: slow.n_waiting() == 0, "it is out of the queue")
        next(lines)
    assert slow.chat("Say OK.", max_tokens=2).text
    wait_until(lambda: slow.stack.started_count() == before + 2, "the holder and the last chat, and none between")


def test_many_answers_hold_nothing(fake: Service) -> None:
    """DIS-06: streams read to their end, and answers on one connection."""
    for number in range(60):
        assert fake.chat_stream("Say OK.", max_tokens=2).is_done, number
        assert fake.chat("Say OK.", max_tokens=2).text
    wait_until(lambda: fake.n_running() == 0, "nothing runs")


def test_client_that_read_the_end_and_stays_holds_nothing(slow: Service) -> None:
    """DIS-06"""
    with slow.sent(CHATS, chat_body("Say OK.", max_tokens=2, stream=True)) as connection:
        received = b""
        while b"data: [DONE]" not in received:
            received += connection.recv(65536)
        assert slow.chat("Say OK.", max_tokens=2).text


def test_client_that_reads_nothing_holds_up_nobody_else(fake: Service) -> None:
    """DIS-06: its answers fill all buffers on the way."""
    with fake.sent(CHATS, chat_body("Repeat exactly: " + "x" * 4_000_000, stream=True)) as stuck:
        assert stuck.fileno() > 0
        fake.assert_alive()
    fake.assert_alive()


def test_answers_leave_nothing_in_redis(fake: Service) -> None:
    """BRK-07: no key of a request is left once its answer was heard, whatever its kind."""

    def claims() -> set[bytes]:
        with fake.stack.redis() as client:
            return set(client.keys("lis:claim:*"))

    before = claims()
    for _ in range(20):
        fake.chat("Say OK.", max_tokens=2)
        fake.chat_stream("Say OK.", max_tokens=2)
        fake.vectors(["a"] * 9)
    wait_until(lambda: not claims() - before, "no claim is left")
