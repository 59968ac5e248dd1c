"""The queue as clients see it, through real processes: waiting, refusal, order, leaving."""

import secrets
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.chat_client import (
    FOREVER,
    LONG_PROMPT,
    Call,
    assert_served,
    chat,
    embed,
    is_running,
    queue_len,
    wait_idle,
)
from tests.stack import FAKE_ENV, Stack
from tests.support import wait_until

BUSY_TIMEOUT_S = 2.0  #: of `slow_live`


@pytest.fixture
def slow(slow_live: Stack) -> Iterator[Stack]:
    wait_idle(slow_live)
    yield slow_live
    wait_idle(slow_live)


@pytest.fixture(scope="module")
def two_slots() -> Iterator[Stack]:
    pace = {"LIS_FAKE_TOKEN": "0.05", "LIS_FAKE_PREFILL": "0.5", "LIS_BUSY_TIMEOUT": "15"}
    with Stack({**FAKE_ENV, **pace, "LIS_PARALLEL": "2", "LIS_MAX_QUEUE": "2"}, keep=True) as stack:
        yield stack


def assert_refused(call: Call) -> None:
    assert call.status == 503, call.body or call.broken
    assert call.error is not None
    assert call.error["code"] == "server_busy"
    assert call.error["type"] == "server_error"
    assert 1 <= int(call.headers["retry-after"]) <= 60


# -- the busy timeout -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waited_for_too_long_gets_503_and_never_runs(slow: Stack, stream: bool) -> None:
    with chat(slow, FOREVER) as holder:
        holder.wait_text()
        started = slow.started_count()
        call = chat(slow, "hello", stream=stream).wait()
        assert_refused(call)
        assert BUSY_TIMEOUT_S <= call.took_s < BUSY_TIMEOUT_S + 0.5
    wait_idle(slow)
    assert slow.started_count() == started
    assert f"request dropped: nobody waits for it request_id={call.id}" in slow.log_text()


def test_embeddings_that_waited_for_too_long_get_503(slow: Stack) -> None:
    with chat(slow, FOREVER) as holder:
        holder.wait_text()
        call = embed(slow, ["a", "b"]).wait()
        assert_refused(call)
        assert BUSY_TIMEOUT_S <= call.took_s < BUSY_TIMEOUT_S + 0.5
    wait_idle(slow)
    assert f"request dropped: nobody waits for it request_id={call.id}" in slow.log_text()


def test_a_client_that_waits_for_less_is_refused_before_it_gives_up(slow: Stack) -> None:
    with chat(slow, FOREVER) as holder:
        holder.wait_text()
        call = chat(slow, "hello", headers={"x-stainless-read-timeout": "1.0"}).wait()
        assert_refused(call)
        assert 0.5 <= call.took_s < 1.0


def test_a_client_that_waits_for_more_does_not_prolong_the_wait(slow: Stack) -> None:
    with chat(slow, FOREVER) as holder:
        holder.wait_text()
        call = chat(slow, "hello", headers={"x-stainless-read-timeout": "600"}).wait()
        assert_refused(call)
        assert call.took_s < BUSY_TIMEOUT_S + 0.5


def test_a_full_lane_refuses_at_once(two_slots: Stack) -> None:
    wait_idle(two_slots)
    holders = [chat(two_slots, FOREVER) for _ in range(2)]
    for holder in holders:
        holder.wait_text()
    waiting = [chat(two_slots, "hello", max_tokens=2) for _ in range(2)]
    wait_until(lambda: queue_len(two_slots) == 2, "two wait")
    for call in (chat(two_slots, "hello").wait(), embed(two_slots, ["a"]).wait()):
        assert_refused(call)
        assert call.took_s < 1.0
    for holder in holders:
        holder.leave()
    assert [call.wait().has_done for call in waiting] == [True, True]


# -- order and slots ----------------------------------------------------------------------------------


def test_two_slots_run_two_requests_at_once(two_slots: Stack) -> None:
    wait_idle(two_slots)
    with chat(two_slots, FOREVER) as one, chat(two_slots, FOREVER) as other:
        wait_until(lambda: is_running(two_slots, 2), "both hold a slot")
        before = len(one.texts), len(other.texts)
        wait_until(lambda: len(one.texts) > before[0] and len(other.texts) > before[1], "both get tokens")


def test_chat_gets_in_between_the_slices_of_an_embeddings_request(two_slots: Stack) -> None:
    """One slot is held, so that the two share the other. Each slice takes half a second."""
    wait_idle(two_slots)
    with chat(two_slots, FOREVER) as holder:
        holder.wait_text()
        vectors = embed(two_slots, [LONG_PROMPT, "b", "c", "d"] * 6)
        wait_until(lambda: is_running(two_slots, 2), "the first slice runs")
        quick = chat(two_slots, "hello", max_tokens=1).wait()
        assert quick.has_done
        assert not vectors.is_over()
        assert vectors.wait().status == 200
        assert [item["index"] for item in vectors.body["data"]] == list(range(24))


def test_requests_run_in_the_order_of_their_arrival(two_slots: Stack) -> None:
    wait_idle(two_slots)
    holders = [chat(two_slots, FOREVER) for _ in range(2)]
    for holder in holders:
        holder.wait_text()
    calls = []
    for number in range(2):
        calls.append(chat(two_slots, "hello", max_tokens=2))
        wait_until(lambda number=number: queue_len(two_slots) == number + 1, "it waits")  # type: ignore[misc]
    holders[0].leave()
    ids = [call.wait().id for call in calls]
    holders[1].leave()
    log = two_slots.log_text()
    starts = [log.index(f"generation started request_id={request_id}") for request_id in ids]
    assert starts == sorted(starts)


def test_nobody_gets_anothers_answer(fake_live: Stack) -> None:
    calls = []
    for number in range(30):
        calls.append(chat(fake_live, f"Say MARK-{number} please", stream=number % 2 == 0))
    for number, call in enumerate(calls):
        call.wait()
        assert call.status == 200, call.body or call.broken
        assert call.text.split()[0] == f"MARK-{number}"
    assert len({call.id for call in calls}) == 30


def test_a_hundred_and_fifty_at_once_are_answered_or_told_to_wait(fake_live: Stack) -> None:
    """More than redis-py's default pool has connections: nobody is told that the queue is unavailable."""
    calls = [chat(fake_live, f"MARK-{number}", stream=False, max_tokens=2) for number in range(150)]
    answers = [call.wait() for call in calls]
    assert {call.status for call in answers} <= {200, 503}
    assert {call.error["code"] for call in answers if call.error} <= {"server_busy"}
    assert sum(call.status == 200 for call in answers) > 30
    wait_idle(fake_live)
    log = fake_live.log_text()
    ran = {call.id for call in answers if f"generation started request_id={call.id}" in log}
    assert ran == {call.id for call in answers if call.status == 200}


# -- clients that leave ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_waiting_means_never_running(slow: Stack, stream: bool) -> None:
    with chat(slow, FOREVER) as holder:
        holder.wait_text()
        started = slow.started_count()
        waiting = chat(slow, FOREVER, stream=stream)
        wait_until(lambda: queue_len(slow) == 1, "it waits")
        waiting.leave()
    wait_idle(slow)
    assert slow.started_count() == started


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", [LONG_PROMPT + FOREVER, FOREVER], ids=["prefill", "decode"])
def test_leaving_while_running_frees_the_slot(slow: Stack, text: str, stream: bool) -> None:
    call = chat(slow, text, stream=stream)
    wait_until(lambda: is_running(slow), "it runs")
    if stream and text is FOREVER:
        call.wait_text(3)
    call.leave()
    left_s = time.monotonic()
    wait_until(lambda: is_running(slow, 0), "the slot is free")
    assert time.monotonic() - left_s < 1.9  # the rest of the answer takes 50 s, a prefill chunk 0.7 s
    assert_served(slow)


def test_leaving_embeddings_between_two_slices_stops_them(slow: Stack) -> None:
    call = embed(slow, [LONG_PROMPT, "b", "c", "d"] * 20)
    wait_until(lambda: is_running(slow), "the first slice runs")
    call.leave()
    wait_idle(slow)  # 20 slices of 2 s each would take longer than it waits
    assert_served(slow)


# -- others are not in the way -------------------------------------------------------------------------------


def test_health_and_models_answer_fast_while_a_generation_runs(slow: Stack) -> None:
    with chat(slow, FOREVER) as holder, slow.client() as client:
        holder.wait_text()
        times = []
        for path in ["/health", "/v1/models"] * 10:
            began_s = time.monotonic()
            assert client.get(path).status_code == 200
            times.append(time.monotonic() - began_s)
    assert statistics.median(times) < 0.2
    assert max(times) < 2.0


# -- what stays behind --------------------------------------------------------------------------------------


def _everything(client: Any) -> dict[str, str]:
    """Each key of the database with its whole value as text."""
    found = {}
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        read: Any = {
            b"string": client.get,
            b"list": lambda name: client.lrange(name, 0, -1),
            b"set": client.smembers,
            b"zset": lambda name: client.zrange(name, 0, -1),
            b"hash": client.hgetall,
            b"none": lambda name: "",  # it has just lapsed
        }[kind]
        found[key.decode()] = repr(read(key))
    return found


def test_redis_keeps_neither_prompts_nor_keys_for_ever(fake_live: Stack) -> None:
    secret = f"SECRET-{secrets.token_hex(8)}"
    calls = [chat(fake_live, f"{secret} {number}", stream=number % 2 == 0) for number in range(6)]
    calls += [embed(fake_live, [secret] * 9), chat(fake_live, f"{secret} FAKE-ERROR"), embed(fake_live, ["FAKE-ERROR"])]
    calls.append(chat(fake_live, f"{secret} " + "word " * 3000))
    for call in calls:
        call.wait()
    leaver = chat(fake_live, f"{secret} {FOREVER}")
    leaver.leave()
    wait_idle(fake_live)
    with fake_live.redis() as client:
        everything = _everything(client)
        forever = [name for name in everything if client.ttl(name) == -1]
    assert [name for name, value in everything.items() if secret in name + value] == []
    assert [name for name in forever if not name.startswith("_kombu.")] == []
    assert secret not in fake_live.log_text()
