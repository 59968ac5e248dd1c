"""Lanes and shares on real workers: who goes first, who takes turns, and who has waited for long enough."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kombu.connection import Connection
from kombu.entity import Queue

from tasks.celery import celery_broker_url
from tasks.contracts import Lane, lane_key, models_key, queue_name, queue_names
from tests.integration.chat_client import FOREVER, Call, chat, embed, is_running, unacked
from tests.stack import CHAT, EMBED, FAKE_ENV, Stack
from tests.support import wait_until

MODELS = models_key(CHAT, EMBED)
TOKEN_S = 0.05
KEYS = {"LIS_API_KEY": "alice:key-a,bob:key-b,indexer:key-i"}
ALICE, BOB, INDEXER = ({"Authorization": f"Bearer key-{letter}"} for letter in "abi")
FLEX = {"x-service-tier": "flex"}
MAX_QUEUE = 39
MAX_WAIT_S = 2.0


def start(**env: str) -> Stack:
    pace = {"LIS_FAKE_TOKEN": str(TOKEN_S), "LIS_BUSY_TIMEOUT": "120", "LIS_MAX_QUEUE": str(MAX_QUEUE)}
    return Stack({**FAKE_ENV, **pace, **KEYS, **env}, keep=True)


@pytest.fixture(scope="module")
def one_slot() -> Iterator[Stack]:
    with start() as stack:
        yield stack


@pytest.fixture(scope="module")
def starving() -> Iterator[Stack]:
    with start(LIS_BATCH_MAX_WAIT=str(MAX_WAIT_S)) as stack:
        yield stack


def waiting(stack: Stack) -> int:
    """Messages in all queues."""
    with stack.redis() as client:
        return sum(int(client.llen(name)) for name in queue_names(MODELS))


def wait_idle(stack: Stack) -> None:
    wait_until(lambda: is_running(stack, 0) and not waiting(stack) and not unacked(stack), "idle", 60.0)


def starts(stack: Stack) -> list[str]:
    """Ids of the generations that an engine has begun, in their order."""
    marks = stack.log_text().split("generation started request_id=")[1:]
    return [mark.split(maxsplit=1)[0] for mark in marks]


def short(stack: Stack, headers: dict[str, str], tokens: int = 1) -> Call:
    return chat(stack, "hello", max_tokens=tokens, headers=headers)


def send_waiting(stack: Stack, headers: dict[str, str], count: int) -> list[Call]:
    """Requests that wait one behind the other."""
    calls = []
    for _ in range(count):
        before = waiting(stack)
        calls.append(short(stack, headers))
        wait_until(lambda before=before: waiting(stack) == before + 1, "it waits")  # type: ignore[misc]
    return calls


def ids(calls: list[Call]) -> list[str]:
    return [call.wait().id for call in calls]


# -- strict lanes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2])
def test_interactive_runs_before_flex_that_came_first(one_slot: Stack, slots: int) -> None:
    if slots == 1:
        check_lanes(one_slot, 1)
    else:
        with start(LIS_PARALLEL=str(slots)) as stack:
            check_lanes(stack, slots)


def check_lanes(stack: Stack, slots: int) -> None:
    wait_idle(stack)
    holders = [chat(stack, FOREVER, headers=ALICE) for _ in range(slots)]
    for holder in holders:
        holder.wait_text()
    before = len(starts(stack))
    flex = send_waiting(stack, INDEXER | FLEX, 2) + send_waiting(stack, ALICE | FLEX, 1)
    vectors = embed(stack, ["a", "b"], headers=INDEXER | FLEX)
    wait_until(lambda: waiting(stack) == 4, "the vectors wait, too")
    interactive = send_waiting(stack, ALICE, 3) + send_waiting(stack, BOB, 2)
    for holder in holders:
        holder.leave()
    order = [*ids(interactive), *ids(flex)]
    got = starts(stack)[before:]
    assert set(got[:5]) == set(order[:5])
    assert set(got[5:]) == set(order[5:])
    assert all(call.has_done for call in interactive + flex)
    assert vectors.wait().status == 200
    a1, a2, a3, b1, b2 = order[:5]
    i1, i2, a_flex = order[5:]
    if slots == 1:  # alice was served last: she held the slot
        assert got[:5] == [b1, a1, b2, a2, a3]
        assert got[5:] in ([i1, a_flex, i2], [a_flex, i1, i2])


# -- fair shares ----------------------------------------------------------------------------------


def test_a_key_that_floods_delays_another_by_one_request(one_slot: Stack) -> None:
    wait_idle(one_slot)
    n_tokens = round(0.25 / TOKEN_S)
    began = len(starts(one_slot))
    flood = [short(one_slot, ALICE, n_tokens)]
    wait_until(lambda: len(starts(one_slot)) > began, "the first of them runs")
    flood += [short(one_slot, ALICE, n_tokens) for _ in range(MAX_QUEUE)]
    wait_until(lambda: waiting(one_slot) > MAX_QUEUE // 2, "many of them wait")
    passed = []
    for _ in range(8):
        before = starts(one_slot)
        single = short(one_slot, BOB, 2).wait()
        assert single.has_done, single.error
        passed.append(starts(one_slot)[len(before) :].index(single.id))
    assert any(not call.is_over() for call in flood)
    assert max(passed) <= 1, passed  # one may have begun while it was on its way
    assert all(call.wait().has_done for call in flood)


def test_the_bound_of_the_queue_is_each_keys_own(one_slot: Stack) -> None:
    wait_idle(one_slot)
    with chat(one_slot, FOREVER, headers=ALICE) as holder:
        holder.wait_text()
        flood = [short(one_slot, ALICE) for _ in range(MAX_QUEUE)]
        wait_until(lambda: waiting(one_slot) == MAX_QUEUE, "the line of the key is full")
        refused = short(one_slot, ALICE).wait()
        assert refused.status == 503
        assert refused.error is not None
        assert refused.error["code"] == "server_busy"
        others = send_waiting(one_slot, BOB, 2) + send_waiting(one_slot, ALICE | FLEX, 2)
    assert all(call.wait().has_done for call in flood + others)


def test_what_nobody_waits_for_any_more_costs_a_key_no_turn(one_slot: Stack) -> None:
    """Bob's first three left while they waited; his fourth goes before alice's second all the same."""
    wait_idle(one_slot)
    with chat(one_slot, FOREVER, headers=BOB) as holder:
        holder.wait_text()
        before = len(starts(one_slot))
        for call in send_waiting(one_slot, BOB, 3):
            call.leave()
        bobs = send_waiting(one_slot, BOB, 1)
        alices = send_waiting(one_slot, ALICE, 3)
    order = [*ids(alices), *ids(bobs)]
    a1, a2, a3, b1 = order
    assert starts(one_slot)[before:] == [a1, b1, a2, a3]


def test_wrong_keys_among_several_are_refused_and_the_log_names_the_right_ones(one_slot: Stack) -> None:
    for key in ("", "key-", "key-x", "alice", "alice:key-a", KEYS["LIS_API_KEY"]):
        call = short(one_slot, {"Authorization": f"Bearer {key}"}).wait()
        assert call.status == 401, key
    named = short(one_slot, BOB).wait()
    line = f"request answered request_id={named.id} "
    wait_until(lambda: line in one_slot.log_text(), "it is logged")
    text = one_slot.log_text()
    assert " key=bob" in text[text.index(line) :].splitlines()[0]
    assert "key-a" not in text


# -- nobody starves ---------------------------------------------------------------------------------


class Feed:
    """Interactive requests that keep coming: three at a time, for as long as `go` is called."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._calls: list[Call] = []

    def go(self) -> None:
        self._calls = [call for call in self._calls if not call.is_over()]
        while len(self._calls) < 3:
            self._calls.append(short(self._stack, ALICE, 4))

    def until(self, calls: list[Call]) -> None:
        def are_over() -> bool:
            self.go()
            return all(call.is_over() for call in calls)

        wait_until(are_over, "they have had their turns", 60.0)

    def end(self) -> None:
        for call in self._calls:
            call.wait()


def lanes_are_empty(stack: Stack) -> bool:
    with stack.redis() as client:
        return not any(client.zcard(lane_key(name)) for name in queue_names(MODELS))


def test_passed_over_for_the_longest_wait_a_flex_request_gets_one_turn(starving: Stack) -> None:
    wait_idle(starving)
    feed = Feed(starving)
    feed.go()
    wait_until(lambda: is_running(starving) and waiting(starving) == 2, "one runs and two wait")
    flex = [short(starving, ALICE | FLEX) for _ in range(3)]  # of the same key, so that no share comes in between
    feed.until(flex)
    order = starts(starving)
    places = sorted(order.index(call.id) for call in flex)
    waits_ms = sorted(int(call.headers["x-queue-wait-ms"]) for call in flex)
    feed.end()
    assert all(call.has_done for call in flex)
    assert waits_ms[0] >= MAX_WAIT_S * 1000
    assert waits_ms[-1] < MAX_WAIT_S * 1000 + 6000
    assert all(later > earlier + 1 for earlier, later in itertools.pairwise(places))  # one at a time
    wait_idle(starving)
    assert [starts(starving).count(call.id) for call in flex] == [1, 1, 1]
    text = starving.log_text()
    assert all(f"request dropped: nobody waits for it request_id={call.id}" in text for call in flex)
    assert lanes_are_empty(starving)


def test_each_slice_of_flex_embeddings_gets_its_turn(starving: Stack) -> None:
    wait_idle(starving)
    feed = Feed(starving)
    feed.go()
    wait_until(lambda: is_running(starving) and waiting(starving) == 2, "one runs and two wait")
    vectors = embed(starving, ["a", "b", "c", "d"] * 2, headers=INDEXER | FLEX)
    feed.until([vectors])
    feed.end()
    assert vectors.status == 200
    assert [item["index"] for item in vectors.body["data"]] == list(range(8))
    assert vectors.took_s >= 2 * MAX_WAIT_S
    wait_idle(starving)
    assert lanes_are_empty(starving)


# -- a killed worker ----------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [queue_name(lane, MODELS, share) for lane in Lane for share in (0, 1, 15)])
def test_what_a_killed_worker_had_taken_goes_back_to_the_head_of_its_own_queue(broker: Stack, queue: str) -> None:
    from tasks.worker import RestoreStep

    url = celery_broker_url(broker.lis_env["LIS_REDIS_URL"])
    keys = {name: f"lis:test:{name}" for name in ("unacked_key", "unacked_index_key", "unacked_mutex_key")}
    with Connection(url, transport_options=keys | {"priority_steps": [0]}) as connection, broker.redis() as client:
        channel = connection.default_channel
        producer = connection.Producer()
        own = Queue(queue, routing_key=queue)(channel)
        for body in ("first", "second"):
            producer.publish(body, exchange="", routing_key=queue, declare=[own])
        taken = own.get()
        assert taken is not None
        assert taken.payload == "first"
        assert client.llen(queue) == 1
        RestoreStep.restored = False
        RestoreStep(SimpleNamespace()).start(SimpleNamespace(task_consumer=SimpleNamespace(channel=channel)))
        assert {name: client.llen(name) for name in queue_names(MODELS) if client.llen(name)} == {queue: 2}
        again = own.get()
        assert again is not None
        assert again.payload == "first"
        assert again.delivery_info["routing_key"] == queue
        own.purge()
        again.ack()
