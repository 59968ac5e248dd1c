"""Which batch request gets a turn, and when. The dispatcher is replaced by a list of what it was given."""

import time
from typing import Any

import pytest

from api import starvation
from api.job import JobState
from api.job_types import QueueUnavailable
from api.starvation import BatchTurns
from tasks.contracts import GenerateRequest, Lane, Started

MAX_WAIT_S = 10.0


class Sent:
    def __init__(self) -> None:
        self.ids: list[str] = []
        self.is_down = False

    async def send_ahead(self, state: JobState) -> None:
        if self.is_down:
            raise QueueUnavailable("down")
        self.ids.append(state.id)


def waiting(name: str, waited_s: float, lane: Lane = Lane.BATCH, is_queued: bool = True) -> JobState:
    state = JobState(GenerateRequest(id=name, model="m", reply_to="api", lane=lane), "lis.x.batch", 100.0)
    state.created -= waited_s
    state.is_queued = is_queued
    return state


def turns(sent: Any, max_wait_s: float = MAX_WAIT_S) -> BatchTurns:
    return BatchTurns(sent, max_wait_s)


async def test_the_one_that_has_waited_longest_goes_first_and_the_next_when_it_was_taken() -> None:
    sent = Sent()
    jobs = [waiting("b", 12), waiting("a", 13), waiting("c", 11)]
    batch = turns(sent)
    for _ in range(3):
        await batch.give(jobs)
    assert sent.ids == ["a"]
    jobs[1].feed(Started("a", 1, 0, "worker", "boot"))
    for _ in range(3):
        await batch.give(jobs)
    assert sent.ids == ["a", "b"]
    jobs[0].ended = True  # its client has left
    await batch.give(jobs)
    assert sent.ids == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("waited_s", "lane", "is_queued"),
    [(MAX_WAIT_S - 5, Lane.BATCH, True), (20.0, Lane.INTERACTIVE, True), (20.0, Lane.BATCH, False)],
    ids=["short", "interactive", "not yet queued"],
)
async def test_others_get_none(waited_s: float, lane: Lane, is_queued: bool) -> None:
    sent = Sent()
    await turns(sent).give([waiting("a", waited_s, lane, is_queued)])
    assert sent.ids == []


async def test_zero_means_never() -> None:
    sent = Sent()
    await turns(sent, 0.0).give([waiting("a", 100_000)])
    assert sent.ids == []


async def test_a_turn_that_was_lost_is_given_again() -> None:
    sent = Sent()
    jobs = [waiting("a", 12)]
    await turns(sent).give(jobs)
    jobs[0].turn_at = time.monotonic() - starvation.REPEAT_S - 1
    await turns(sent).give(jobs)
    assert sent.ids == ["a", "a"]


async def test_while_redis_is_away_it_is_tried_again() -> None:
    sent = Sent()
    jobs = [waiting("a", 12)]
    sent.is_down = True
    await turns(sent).give(jobs)
    sent.is_down = False
    await turns(sent).give(jobs)
    assert sent.ids == ["a"]


async def test_a_request_that_starts_again_may_get_another_turn() -> None:
    sent = Sent()
    jobs = [waiting("a", 12)]
    await turns(sent).give(jobs)
    jobs[0].feed(Started("a", 1, 0, "worker", "boot"))
    jobs[0].restart()
    await turns(sent).give(jobs)
    assert sent.ids == ["a"]  # its new message is not in the queue yet
    jobs[0].is_queued = True
    await turns(sent).give(jobs)
    assert sent.ids == ["a", "a"]


async def test_a_request_that_runs_or_has_ended_needs_no_turn() -> None:
    sent = Sent()
    running, ended, refused = waiting("r", 20), waiting("e", 20), waiting("x", 20)
    running.feed(Started("r", 1, 0, "worker", "boot"))
    ended.ended = True
    refused.refuse()
    await turns(sent).give([running, ended, refused])
    assert sent.ids == []
