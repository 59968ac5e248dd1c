"""Requests of batches in the queue: nobody hears a refusal, so it is waited out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import fakeredis
import pytest

from api.batches.live import LiveBatches
from api.batches.runner import lane
from api.batches.runner.lane import BatchLane, Slots
from api.job import JobState
from api.job_types import QueueUnavailable, RequestFailed, ServerBusy
from tasks.contracts import (
    Delta,
    EmbedRequest,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Frame,
    GenerateRequest,
    Lane,
    Started,
    Timings,
    Usage,
    Vectors,
    WorkerState,
    claim_key,
)
from tests.unit.batch_runs import until
from tests.unit.batch_support import batch_of
from tests.unit.fake_jobs import CHAT, EMBED, WIDTH, vector, worker

BATCH = batch_of(model=EMBED, key_name="night", share=3)
Respond = Callable[["FakeQueue", JobState], Any]


class FakeQueue:
    """Answers each sending with the next of `responses`: an exception that refuses it, or frames."""

    api_id = "api-1"

    def __init__(self, *responses: Exception | Respond) -> None:
        self.responses = list(responses)
        self.states: list[JobState] = []
        self.bounds: list[int] = []
        self.left = 0
        self.redis = fakeredis.FakeAsyncRedis()

    def workers(self) -> list[WorkerState]:
        return [worker()]

    @asynccontextmanager
    async def queued(
        self, request: GenerateRequest | EmbedRequest, wait_s: float, max_queue: int, patience_s: float | None = None
    ) -> AsyncIterator[JobState]:
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        state = JobState(request, "a queue", wait_s)
        state.is_queued = True
        self.states.append(state)
        self.bounds.append(max_queue)
        response(self, state)
        try:
            yield state
        finally:
            self.left += 1

    async def wait_started(self, state: JobState) -> None:
        if not await state.wait_started():
            raise ServerBusy("not in time")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "CHECK_S", 0.01)
    monkeypatch.setattr(lane, "PAUSE_S", 0.001)


def lane_of(queue: FakeQueue) -> BatchLane:
    return BatchLane(queue, LiveBatches(queue.redis))


def feed(state: JobState, *frames: tuple[type[Frame], tuple[Any, ...]]) -> None:
    for seq, (kind, fields) in enumerate(frames):
        state.feed(kind(state.id, 1, seq, *fields))  # type: ignore[arg-type]


def vectors(_: FakeQueue, state: JobState) -> None:
    assert isinstance(state.request, EmbedRequest)
    rows = b"".join(vector(text).tobytes() for text in state.request.texts)
    tokens = [len(text) for text in state.request.texts]
    end = (FinishReason.STOP, Usage(prompt_tokens=sum(tokens)), Timings(prompt_n=sum(tokens), prompt_ms=250.0))
    feed(state, (Started, ("w", "boot")), (Vectors, (WIDTH, rows, [], tokens)), (Finished, end))


def said(_: FakeQueue, state: JobState) -> None:
    end = (FinishReason.STOP, Usage(3, 1), Timings())
    feed(state, (Started, ("w", "boot")), (Delta, ("hi", 1)), (Finished, end))


def stopped(_: FakeQueue, state: JobState) -> None:
    feed(state, (Started, ("w", "boot")), (Failed, (ErrorCode.WORKER_SHUTDOWN, "shut down")))


def died(_: FakeQueue, state: JobState) -> None:
    feed(state, (Started, ("w", "boot")), (Failed, (ErrorCode.ENGINE_LOST, "died")))


def lost(_: FakeQueue, __: JobState) -> None:
    """In the queue, and in no Redis."""


async def test_a_slice_goes_to_the_batch_lane_in_its_keys_turn_without_a_bound() -> None:
    queue = FakeQueue(vectors)
    answer = await lane_of(queue).embed(BATCH, ["a", "bcd"])
    assert answer.rows == [vector("a").tobytes(), vector("bcd").tobytes()]
    assert (answer.tokens, answer.prompt_tokens, answer.busy_s) == ([1, 3], 4, 0.25)
    (request,) = [state.request for state in queue.states]
    assert (request.lane, request.share, request.caller, request.model) == (Lane.BATCH, 3, "night", EMBED)
    assert queue.bounds == [0] and queue.left == 1


@pytest.mark.parametrize("refusal", [ServerBusy("busy"), QueueUnavailable("no Redis"), stopped, lost])
async def test_what_is_refused_or_lost_is_sent_again_with_an_id_of_its_own(refusal: Exception | Respond) -> None:
    queue = FakeQueue(vectors, refusal, refusal, vectors)
    one = lane_of(queue)
    await one.embed(BATCH, ["first"])
    async with asyncio.timeout(5):
        await one.embed(BATCH, ["again"])
    assert not queue.responses
    assert len({state.id for state in queue.states}) == len(queue.states) == queue.left


async def test_its_turn_between_interactive_requests_counts_from_the_first_sending() -> None:
    queue = FakeQueue(stopped, vectors)
    await lane_of(queue).embed(BATCH, ["a"])
    assert queue.states[0].created == queue.states[1].created


async def test_a_request_that_waits_and_is_known_to_redis_is_left_alone() -> None:
    queue = FakeQueue(lost)
    task = asyncio.ensure_future(lane_of(queue).embed(BATCH, ["a"]))

    async def is_sent() -> bool:
        return bool(queue.states)

    await until(is_sent)
    await queue.redis.set(claim_key(queue.states[0].claim), "waiting")
    await asyncio.wait({task}, timeout=0.1)
    assert not task.done()
    vectors(queue, queue.states[0])
    await task
    assert len(queue.states) == 1


async def test_a_death_is_told_and_not_hidden_by_a_restart() -> None:
    queue = FakeQueue(died)
    with pytest.raises(RequestFailed) as caught:
        await lane_of(queue).embed(BATCH, ["a"])
    assert caught.value.code is ErrorCode.ENGINE_LOST
    assert not queue.states[0].can_restart()


async def test_a_generation_keeps_its_id_as_the_beginning_of_each_sending() -> None:
    queue = FakeQueue(stopped, said)
    request = GenerateRequest(id="chatcmpl-1", model=CHAT, reply_to="", messages=[])
    generated = await lane_of(queue).generate(request, BATCH)
    assert generated.answer.choices[0].text == "hi" and generated.answer.usage.prompt_tokens == 3
    ids = [state.id for state in queue.states]
    assert len(set(ids)) == 2 and all(i.startswith("chatcmpl-1.") for i in ids)
    assert queue.states[0].request.lane is Lane.BATCH


async def test_slots_follow_a_limit_that_changes() -> None:
    limit = 1
    slots = Slots(lambda: limit)
    await slots.acquire()
    second = asyncio.ensure_future(slots.acquire())
    await asyncio.wait({second}, timeout=0.05)
    assert not second.done()
    limit = 2
    await asyncio.wait_for(second, 5)
    slots.release()
    await asyncio.wait_for(slots.acquire(), 5)
