"""JobState: whatever order frames come in, the handler sees one answer, whole and in order, or one error."""

import asyncio
import itertools
import math
import time

import pytest

from api.job import JobState
from api.job_types import RequestFailed
from tasks.contracts import (
    AnyFrame,
    Delta,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Progress,
    Started,
    Timings,
    Usage,
    Vectors,
)

ID = "chatcmpl-1"


def state(wait_s: float = 10.0) -> JobState:
    return JobState(GenerateRequest(id=ID, model="m", reply_to="api"), "queue", wait_s)


def started(seq: int = 0, attempt: int = 1) -> Started:
    return Started(ID, attempt, seq, "worker", "boot")


def delta(seq: int, text: str, attempt: int = 1) -> Delta:
    return Delta(ID, attempt, seq, text, 1)


def finished(seq: int, attempt: int = 1) -> Finished:
    return Finished(ID, attempt, seq, FinishReason.STOP, Usage(), Timings())


def lost(seq: int = -1, attempt: int = 1) -> Failed:
    return Failed(ID, attempt, seq, ErrorCode.ENGINE_LOST, "gone")


async def text_of(job: JobState) -> str:
    return "".join([event.text async for event in job.events() if isinstance(event, Delta)])


WHOLE: list[AnyFrame] = [started(), delta(1, "a"), delta(2, "b"), delta(3, "c"), finished(4)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::7])
async def test_frames_in_any_order_give_the_same_answer(order: tuple[int, ...]) -> None:
    job = state()
    for index in order:
        job.feed(WHOLE[index])
    assert await job.wait_started()
    assert await text_of(job) == "abc"
    assert job.ended and not job.gap


async def test_doubled_frames_are_dropped() -> None:
    job = state()
    for frame in [frame for frame in WHOLE for _ in range(2)] + WHOLE:
        job.feed(frame)
    assert await text_of(job) == "abc"


async def test_a_gap_is_seen_and_holds_back_what_comes_after_it() -> None:
    job = state()
    for frame in (WHOLE[0], WHOLE[1], WHOLE[3], WHOLE[4]):
        job.feed(frame)
    assert job.gap and not job.ended
    assert job.next_seq == 2
    job.feed(WHOLE[2])
    assert not job.gap and job.ended
    assert await text_of(job) == "abc"


async def test_a_missing_first_frame_is_a_gap_and_the_request_has_not_started() -> None:
    job = state(wait_s=0.0)
    job.feed(WHOLE[1])
    assert job.gap and job.next_seq == 0
    assert not await job.wait_started()
    job.feed(WHOLE[0])
    assert await job.wait_started()


async def test_frames_of_an_earlier_attempt_are_dropped_after_a_restart() -> None:
    job = state()
    job.feed(started())
    job.restart()
    assert job.worker is None and job.next_seq == 0
    job.feed(delta(1, "old"))
    job.feed(lost())
    assert not job.ended
    for frame in (started(0, 2), delta(1, "new", 2), finished(2, 2)):
        job.feed(frame)
    assert await text_of(job) == "new"


async def test_frames_of_a_later_attempt_do_not_count_before_the_restart() -> None:
    job = state()
    job.feed(started(0, 2))
    assert job.started_at is None


def test_a_request_with_progress_only_can_start_again_once() -> None:
    job = state()
    job.feed(started())
    job.feed(Progress(ID, 1, 1, 5, 10))
    assert job.can_restart()
    job.restart()
    assert not job.can_restart()


def test_a_request_with_output_never_starts_again() -> None:
    job = state()
    job.feed(started())
    job.feed(delta(1, "a"))
    assert not job.can_restart()


def test_a_request_that_has_ended_never_starts_again() -> None:
    job = state()
    job.fail(ErrorCode.WORKER_LOST, "gone")
    assert not job.can_restart()


def test_claims_of_two_attempts_differ() -> None:
    job = state()
    first = job.claim
    job.restart()
    assert job.claim != first


async def test_failure_while_waiting_is_raised_to_the_one_who_waits() -> None:
    job = state()
    waiting = asyncio.ensure_future(job.wait_started())
    await asyncio.wait({waiting}, timeout=0)
    job.fail(ErrorCode.WORKER_LOST, "gone")
    with pytest.raises(RequestFailed, match="gone") as caught:
        await waiting
    assert caught.value.code is ErrorCode.WORKER_LOST


async def test_failure_before_output_is_raised_instead_of_a_start() -> None:
    job = state()
    job.feed(started())
    job.feed(Failed(ID, 1, 1, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", "messages"))
    with pytest.raises(RequestFailed) as caught:
        await job.wait_started()
    assert caught.value.param == "messages"


async def test_failure_after_output_comes_behind_the_output() -> None:
    job = state()
    for frame in (started(), delta(1, "a"), lost()):
        job.feed(frame)
    assert await job.wait_started()
    events = job.events()
    assert isinstance(await anext(events), Delta)
    with pytest.raises(RequestFailed):
        await anext(events)


async def test_the_first_end_counts() -> None:
    job = state()
    for frame in (*WHOLE, lost()):
        job.feed(frame)
    job.fail(ErrorCode.WORKER_LOST, "late")
    assert await text_of(job) == "abc"


async def test_a_slow_reader_gets_merged_deltas_and_the_last_progress() -> None:
    job = state()
    job.feed(started())
    for seq in range(1, 101):
        job.feed(Progress(ID, 1, seq, seq, 100))
    for seq in range(101, 1101):
        job.feed(delta(seq, "x"))
    job.feed(finished(1101))
    events = [event async for event in job.events()]
    assert [type(event) for event in events] == [Progress, Delta, Finished]
    assert events[0].done == 100  # type: ignore[union-attr]
    assert (events[1].text, events[1].tokens) == ("x" * 1000, 1000)  # type: ignore[union-attr]


async def test_a_reader_that_keeps_up_gets_each_delta() -> None:
    job = state()
    job.feed(started())
    events = job.events()
    for seq, text in enumerate("abc", 1):
        reading = asyncio.ensure_future(anext(events))
        await asyncio.wait({reading}, timeout=0)
        job.feed(delta(seq, text))
        assert (await reading).text == text  # type: ignore[union-attr]


async def test_vectors_are_output() -> None:
    job = state()
    job.feed(started())
    job.feed(Vectors(ID, 1, 1, 1, b"\0\0\0\0", []))
    assert job.has_output and not job.can_restart()


async def test_the_wait_ends_at_the_deadline() -> None:
    job = state(wait_s=0.05)
    assert not await job.wait_started()
    assert time.monotonic() >= job.deadline


async def test_refusal_ends_the_wait_at_once() -> None:
    job = state(wait_s=60.0)
    waiting = asyncio.ensure_future(job.wait_started())
    await asyncio.wait({waiting}, timeout=0)
    job.refuse()
    assert not await asyncio.wait_for(waiting, 5)


async def test_a_refused_request_that_runs_already_is_served() -> None:
    job = state()
    job.feed(started())
    job.refuse()
    assert await job.wait_started()


def deadlined(deadline_ms: int, wait_s: float = 10.0, patience_s: float = math.inf) -> JobState:
    at_ms = int(time.time() * 1000) + deadline_ms
    request = GenerateRequest(id=ID, model="m", reply_to="api", deadline_ms=at_ms)
    return JobState(request, "queue", wait_s, patience_s)


def left_s(job: JobState) -> float:
    return job.deadline - time.monotonic()


@pytest.mark.parametrize(("deadline_ms", "wait_s", "left"), [(3000, 10.0, 3.0), (30_000, 10.0, 10.0), (-5, 10.0, 0.0)])
async def test_a_deadline_bounds_the_wait(deadline_ms: int, wait_s: float, left: float) -> None:
    assert left_s(deadlined(deadline_ms, wait_s)) == pytest.approx(left, abs=0.1)


async def test_a_second_attempt_may_wait_anew_but_not_past_the_deadline() -> None:
    job = deadlined(3000)
    job.restart()
    job.wait_anew(20.0)
    assert left_s(job) == pytest.approx(3.0, abs=0.1)
    job = state(1.0)
    job.restart()
    job.wait_anew(20.0)
    assert left_s(job) == pytest.approx(20.0, abs=0.1)


async def test_the_clients_read_timeout_bounds_a_second_attempt_while_it_has_no_head() -> None:
    job = JobState(GenerateRequest(id=ID, model="m", reply_to="api"), "queue", 10.0, 12.0)
    job.wait_anew(60.0)
    assert left_s(job) == pytest.approx(12.0, abs=0.1)
    job.feed(started())
    job.wait_anew(60.0)
    assert left_s(job) == pytest.approx(60.0, abs=0.1)


@pytest.mark.parametrize("give_up", ["refuse", "hopeless"])
async def test_who_is_given_up_waits_no_more_unless_it_runs(give_up: str) -> None:
    for runs in (False, True):
        job = state(30.0)
        if runs:
            job.feed(started())
        waits = asyncio.create_task(job.wait_started())
        await asyncio.sleep(0)
        job.refuse() if give_up == "refuse" else job.give_up_hope(99.0)
        async with asyncio.timeout(1.0):
            assert await waits is runs
