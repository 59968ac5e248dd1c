"""/v1/responses over real sockets: clients that leave, and the whole service with a slow engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.http_server import DEADLINE_S, Server, assert_alive, connect, running_server
from tests.service_calls import Service, error_of, good
from tests.stack import CHAT
from tests.support import wait_until
from tests.unit.fake_jobs import CHAT as FAKE_CHAT
from tests.unit.fake_jobs import Step, delta, progress

PATH = "/v1/responses"
ENDLESS = {"model": CHAT, "input": "Never stop.", "max_output_tokens": 1000}
STOP_S = 1.5  #: a cancelled request ends within a step of 0.05 s, or a chunk of a prefill


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with running_server() as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waiting", [True, False])
async def test_client_that_leaves_cancels(server: Server, waiting: bool, stream: bool) -> None:
    never: list[Step] = [asyncio.Event()]
    server.jobs.waiting = never if waiting else []
    server.jobs.running = [progress(1, 9), *never]
    came = server.jobs.was_submitted if waiting else server.jobs.has_started
    async with connect(server) as connection:
        await connection.post(PATH, {"model": FAKE_CHAT, "input": "hi", "stream": stream})
        await asyncio.wait_for(came.wait(), DEADLINE_S)
        connection.abort()
        await asyncio.wait_for(server.jobs.was_cancelled.wait(), DEADLINE_S)
    assert server.jobs.cancelled == [server.jobs.submitted[0].id]
    await assert_alive(server)


async def test_client_that_leaves_between_tokens_cancels(server: Server) -> None:
    server.jobs.running = [delta("x"), asyncio.Event()]
    async with connect(server) as connection:
        await connection.post(PATH, {"model": FAKE_CHAT, "input": "hi", "stream": True})
        await connection.until(b'"delta":"x"')
        connection.abort()
        await asyncio.wait_for(server.jobs.was_cancelled.wait(), DEADLINE_S)
    assert server.jobs.cancelled == [server.jobs.submitted[0].id]


def test_left_stream_frees_the_slot(slow: Service) -> None:
    """The whole would take 50 s, and the next request waits 2 s at most."""
    with slow.client.stream("POST", PATH, json=ENDLESS | {"stream": True}) as response:
        assert any("response.output_text.delta" in line for line in response.iter_lines())
    wait_until(lambda: slow.n_running() == 0, "the slot is free", STOP_S + 2.0)
    assert good(slow.post(PATH, ENDLESS | {"max_output_tokens": 2})).json()["status"] == "incomplete"


def test_a_long_prefill_has_a_heartbeat_each_second(slow: Service) -> None:
    body = {"model": CHAT, "input": "word " * 300, "max_output_tokens": 2, "stream": True}
    events = [
        json.loads(line[len("data: ") :])
        for line in good(slow.post(PATH, body)).text.split("\n")
        if line.startswith("data: ")
    ]
    kinds: list[str] = [event["type"] for event in events]
    beats = kinds[: kinds.index("response.output_item.added")].count("response.in_progress") - 1
    assert 1 <= beats <= 3
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_busy_server_is_a_status(slow: Service) -> None:
    holder: Any = ENDLESS | {"stream": True}
    with slow.client.stream("POST", PATH, json=holder) as response:
        lines = response.iter_lines()  # dropped, it would close the connection
        assert any("response.output_text.delta" in line for line in lines)
        for stream in (False, True):
            refused = slow.post(PATH, {"model": CHAT, "input": "hi", "stream": stream})
            error_of(refused, 503, "server_busy")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
    wait_until(lambda: slow.n_running() == 0, "the slot is free", STOP_S + 2.0)
