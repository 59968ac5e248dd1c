"""Whose turn it is: every order of up to three deliveries, and the names of queues."""

import itertools

import pytest
from kombu.utils.scheduling import cycle_by_name

from tasks import lanes
from tasks.contracts import SHARES, Lane, queue_name, queue_names, queue_parts
from tasks.lanes import LaneOrder, Turns

MODELS = "0123abcd"
I0, I1, I2 = (queue_name(Lane.INTERACTIVE, MODELS, share) for share in range(3))
B0, B1, B2 = (queue_name(Lane.BATCH, MODELS, share) for share in range(3))
ALL = [I0, I1, I2, B0, B1, B2]


def serve(turns: Turns, waiting: dict[str, int]) -> list[str]:
    """Take all messages one by one as a worker does, and return the queues they came from."""
    left, taken = dict(waiting), []
    while any(left.values()):
        queue = next(queue for queue in turns.in_order(ALL) if left.get(queue))
        turns.taken(queue)
        left[queue] -= 1
        taken.append(queue)
    return taken


@pytest.mark.parametrize("interactive", list(itertools.product(range(3), repeat=3)), ids=str)
def test_whatever_waits_interactive_goes_first_and_shares_take_turns(interactive: tuple[int, ...]) -> None:
    for batch in itertools.product(range(3), repeat=3):
        waiting = dict(zip(ALL, interactive + batch, strict=True))
        rounds = [[queue for queue in lane if waiting[queue] > at] for lane in (ALL[:3], ALL[3:]) for at in range(2)]
        assert serve(Turns(), waiting) == list(itertools.chain(*rounds))


@pytest.mark.parametrize("served", list(itertools.product([I0, I1, I2], repeat=3)))
def test_the_share_that_was_served_longest_ago_is_first(served: tuple[str, ...]) -> None:
    turns = Turns()
    for queue in served:
        turns.taken(queue)
    never = [queue for queue in (I0, I1, I2) if queue not in served]
    by_last = sorted(set(served), key=lambda queue: max(at for at, name in enumerate(served) if name == queue))
    assert turns.in_order(ALL) == [*never, *by_last, B0, B1, B2]


@pytest.mark.parametrize("served", list(itertools.product([I0, I1, B0], repeat=3)))
def test_a_turn_that_is_given_back_was_none(served: tuple[str, ...]) -> None:
    turns = Turns()
    for queue in served:
        turns.taken(queue)
    before = turns.in_order(ALL)
    for queue in (I0, B1, I0, I1):
        turns.taken(queue)
    for queue in (I1, I0, B1, I0):
        turns.give_back(queue)
    assert turns.in_order(ALL) == before


def test_more_given_back_than_taken_changes_nothing() -> None:
    turns = Turns()
    turns.give_back(I0)
    turns.taken(I1)
    turns.give_back(I2)
    assert turns.in_order(ALL) == [I0, I2, I1, B0, B1, B2]


def test_queues_of_others_come_last() -> None:
    turns = Turns()
    turns.taken(I0)
    assert turns.in_order(["mine", B0, "celery", I0]) == [I0, B0, "mine", "celery"]


def test_kombu_finds_the_order_by_its_name_and_a_new_connection_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "TURNS", Turns())
    make = cycle_by_name("tasks.lanes:LaneOrder")
    assert make is LaneOrder
    order = make()
    order.update([B0, I1, I0])
    assert order.consume(3) == [I1, I0, B0]
    assert order.rotate(I1) == I1
    assert order.consume(3) == [I0, I1, B0]
    assert order.consume(1) == [I0]
    order.update([I1])
    assert order.consume(5) == [I1]
    again = make()
    again.update([I0, I1])
    assert again.consume(2) == [I0, I1]
    assert make().consume(0) == []


def test_names_of_queues_can_be_read_back() -> None:
    names = queue_names(MODELS)
    assert len(set(names)) == len(names) == 2 * SHARES
    assert names[0] == f"lis.{MODELS}.interactive"
    for name in names:
        parts = queue_parts(name)
        assert parts is not None
        assert queue_name(*parts) == name
    assert queue_name(Lane.BATCH, MODELS, SHARES + 3) == queue_name(Lane.BATCH, MODELS, 3)


@pytest.mark.parametrize(
    "name", ["celery", "lis", "lis.a", "lis.a.other", "lis.a.batch.x", "lis.a.batch.1.2", "", "x.a.batch"]
)
def test_other_names_are_none_of_ours(name: str) -> None:
    assert queue_parts(name) is None
