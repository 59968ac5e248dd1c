"""FramePublisher against an in-memory Redis that can refuse and forget."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tasks.contracts import AnyFrame, Delta, Finished, FinishReason, Started, Timings, Usage, reply_channel
from tasks.frames import FramePublisher, decoder
from tests.support import wait_until


class FakePipeline:
    def __init__(self, owner: "FakeRedis") -> None:
        self._owner = owner
        self._messages: list[tuple[str, bytes]] = []

    def publish(self, channel: str, data: bytes) -> None:
        self._messages.append((channel, data))

    def execute(self) -> list[int]:
        return self._owner.deliver(self._messages)


class FakeRedis:
    """Counts listeners as told, raises when down, and can lose an answer after the delivery."""

    def __init__(self) -> None:
        self.listeners = 1
        self.is_down = False
        self.loses_answer = False
        self.got: dict[str, list[AnyFrame]] = {}
        self.messages = 0
        self.tries = 0
        self.gate = threading.Event()
        self.gate.set()

    def pipeline(self, transaction: bool) -> FakePipeline:
        assert transaction is False
        return FakePipeline(self)

    def deliver(self, messages: list[tuple[str, bytes]]) -> list[int]:
        self.gate.wait(10)
        self.tries += 1
        if self.is_down:
            raise redis.ConnectionError
        for channel, data in messages:
            self.messages += 1
            if self.listeners:
                self.got.setdefault(channel, []).extend(decoder.decode(data))
        if self.loses_answer:
            self.loses_answer = False
            raise redis.TimeoutError
        return [self.listeners] * len(messages)


class Rig:
    def __init__(self, merge_window_s: float = 0.0) -> None:
        self.redis = FakeRedis()
        self.abandoned: list[str] = []
        client: Any = self.redis
        self.publisher = FramePublisher(
            client, self.abandoned.append, abandoned_after_s=0.2, merge_window_s=merge_window_s
        )

    def frames(self, api_id: str = "api") -> list[AnyFrame]:
        return self.redis.got.get(reply_channel(api_id), [])

    def flush(self) -> None:
        wait_until(self.publisher.is_flushed, "all frames are handed to Redis")
        self.redis.gate.set()
        self.publisher.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.redis.gate.set()
    rig.redis.is_down = False
    rig.redis.listeners = 1
    rig.publisher.close()


def test_frames_are_numbered_from_zero_and_in_order(rig: Rig) -> None:
    outbox = rig.publisher.open("r1", 2, "api")
    outbox.put(Started, "w", "b")
    outbox.put(Delta, "a", 1, 0, False, [])
    outbox.put(Finished, FinishReason.STOP, Usage(), Timings())
    rig.flush()
    assert [(type(frame), frame.attempt, frame.seq) for frame in rig.frames()] == [
        (Started, 2, 0),
        (Delta, 2, 1),
        (Finished, 2, 2),
    ]


def test_deltas_that_pile_up_are_merged(rig: Rig) -> None:
    rig.redis.gate.clear()
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    wait_until(rig.publisher.is_flushed, "the first frame is on its way, and stuck there")
    for _ in range(1000):
        outbox.put(Delta, "x", 1, 0, False, [])
    rig.redis.gate.set()
    rig.flush()
    _, merged = rig.frames()
    assert isinstance(merged, Delta)
    assert (merged.text, merged.tokens, merged.seq) == ("x" * 1000, 1000, 1)


def test_tokens_gather_behind_the_first_one_and_the_end_waits_for_nothing() -> None:
    """The window never passes here: only what may not wait sends."""
    rig = Rig(merge_window_s=600.0)
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    outbox.put(Delta, "a", 1, 0, False, [])
    wait_until(lambda: rig.frames()[-1:] and isinstance(rig.frames()[-1], Delta), "the first token has left")
    for text in "bcd":
        outbox.put(Delta, text, 1, 0, False, [])
    outbox.put(Finished, FinishReason.STOP, Usage(), Timings())
    wait_until(lambda: isinstance(rig.frames()[-1], Finished), "the end has left")
    assert [frame.text for frame in rig.frames() if isinstance(frame, Delta)] == ["a", "bcd"]
    rig.publisher.close()


def test_what_another_choice_or_the_reasoning_says_is_not_merged(rig: Rig) -> None:
    rig.redis.gate.clear()
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    wait_until(rig.publisher.is_flushed, "the first frame is on its way, and stuck there")
    for choice, is_reasoning in [(0, True), (0, True), (0, False), (1, False)]:
        outbox.put(Delta, "x", 1, choice, is_reasoning, [])
    rig.redis.gate.set()
    rig.flush()
    deltas = [frame for frame in rig.frames() if isinstance(frame, Delta)]
    assert [(delta.text, delta.choice, delta.is_reasoning) for delta in deltas] == [
        ("xx", 0, True),
        ("x", 0, False),
        ("x", 1, False),
    ]


def test_putting_never_waits_for_redis(rig: Rig) -> None:
    """The gate stays shut: were `put` to wait, this would never end."""
    rig.redis.gate.clear()
    outbox = rig.publisher.open("r1", 1, "api")
    for _ in range(100):
        outbox.put(Delta, "x", 1, 0, False, [])
        outbox.put(Started, "w", "b")
    assert rig.frames() == []


def test_an_outage_loses_nothing_and_keeps_the_order(rig: Rig) -> None:
    rig.redis.is_down = True
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    for text in "abc":
        outbox.put(Delta, text, 1, 0, False, [])
    rig.redis.is_down = False
    outbox.put(Delta, "d", 1, 0, False, [])
    rig.flush()
    assert [frame.seq for frame in rig.frames()] == list(range(len(rig.frames())))
    assert "".join(frame.text for frame in rig.frames() if isinstance(frame, Delta)) == "abcd"


def test_what_may_have_arrived_is_sent_again_under_the_same_number(rig: Rig) -> None:
    rig.redis.loses_answer = True
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    wait_until(lambda: len(rig.frames()) == 2, "sent twice")
    assert rig.frames()[0] == rig.frames()[1]


def test_frames_wait_for_a_listener_that_comes_back(rig: Rig) -> None:
    rig.redis.listeners = 0
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    wait_until(lambda: rig.redis.messages > 1, "published in vain, more than once")
    rig.redis.listeners = 1
    rig.flush()
    assert [frame.seq for frame in rig.frames()] == [0]
    assert rig.abandoned == []


def test_a_channel_nobody_listens_to_is_abandoned(rig: Rig) -> None:
    rig.redis.listeners = 0
    rig.publisher.open("r1", 1, "api").put(Started, "w", "b")
    rig.publisher.open("r2", 1, "api").put(Started, "w", "b")
    wait_until(lambda: {"r1", "r2"} <= set(rig.abandoned), "both are told")


def test_an_outage_of_redis_abandons_nobody(rig: Rig) -> None:
    rig.redis.is_down = True
    rig.publisher.open("r1", 1, "api").put(Started, "w", "b")
    wait_until(lambda: rig.redis.tries > 10, "tried for more than twice the bound")
    assert rig.abandoned == []


def test_time_without_redis_is_not_time_without_a_listener(rig: Rig) -> None:
    """Unheard, away, unheard: each for less than the bound, which the three together exceed."""
    rig.redis.listeners = 0
    rig.publisher.open("r1", 1, "api").put(Started, "w", "b")
    wait_until(lambda: rig.redis.messages > 0, "unheard once")
    rig.redis.is_down = True
    tries = rig.redis.tries
    wait_until(lambda: rig.redis.tries > tries + 5, "away for longer than the bound")
    messages = rig.redis.messages
    rig.redis.is_down = False
    wait_until(lambda: rig.redis.messages > messages, "unheard again")
    assert rig.abandoned == []
    rig.redis.listeners = 1
    wait_until(lambda: bool(rig.frames()), "heard")
    assert rig.abandoned == []


def test_a_batch_that_cannot_be_sent_does_not_end_the_publisher(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.publisher.open("r1", 1, "api").put(Delta, "\ud800", 1, 0, False, [])  # no UTF-8
    wait_until(lambda: "frames not sent" in caplog.text, "it is logged")
    rig.publisher.open("r2", 1, "api").put(Started, "w", "b")
    wait_until(lambda: [frame.id for frame in rig.frames()] == ["r2"], "the next is sent")


def test_resend_starts_where_it_is_asked_to(rig: Rig) -> None:
    outbox = rig.publisher.open("r1", 1, "api")
    for _ in range(4):
        outbox.put(Started, "w", "b")
    wait_until(lambda: len(rig.frames()) == 4, "sent")
    assert rig.publisher.resend("r1", 2)
    rig.flush()
    assert [frame.seq for frame in rig.frames()] == [0, 1, 2, 3, 2, 3]


def test_resend_of_an_ended_request_works_and_of_an_unknown_one_does_not(rig: Rig) -> None:
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    rig.publisher.end(outbox)
    assert rig.publisher.resend("r1", 0)
    assert not rig.publisher.resend("other", 0)


def test_each_api_process_gets_its_own_frames(rig: Rig) -> None:
    rig.publisher.open("r1", 1, "api-1").put(Started, "w", "b")
    rig.publisher.open("r2", 1, "api-2").put(Started, "w", "b")
    rig.flush()
    assert [frame.id for frame in rig.frames("api-1")] == ["r1"]
    assert [frame.id for frame in rig.frames("api-2")] == ["r2"]


def test_close_sends_what_is_pending(rig: Rig) -> None:
    outbox = rig.publisher.open("r1", 1, "api")
    outbox.put(Started, "w", "b")
    rig.publisher.close()
    assert len(rig.frames()) == 1
