"""FramePublisher and FrameReceiver through a real broker, which is stopped, started and frozen in between."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tasks.contracts import AnyFrame, Delta, ErrorCode, Failed, Started, reply_channel
from tasks.frames import FramePublisher, FrameReceiver, publish_failure, sync_redis
from tasks.listeners import ReplyListeners
from tests.stack import Stack
from tests.support import wait_until


class Ear:
    """A receiver and what it heard."""

    def __init__(self, url: str) -> None:
        self.api_id = secrets.token_hex(4)
        self.frames: list[AnyFrame] = []
        self.connected = 0
        self.receiver = FrameReceiver(url, self.api_id, self.frames.append, self._on_connected)

    async def _on_connected(self) -> None:
        self.connected += 1

    def seqs(self) -> set[int]:
        return {frame.seq for frame in self.frames}


async def until(predicate: Callable[[], object], description: str) -> None:
    """`wait_until` beside the event loop, which the receiver needs."""
    await asyncio.to_thread(wait_until, predicate, description, 15.0)


@pytest.fixture
async def ear(broker: Stack) -> AsyncIterator[Ear]:
    ear = Ear(broker.lis_env["LIS_REDIS_URL"])
    await ear.receiver.start()
    await until(lambda: ear.receiver.is_connected, "subscribed")
    yield ear
    await ear.receiver.stop()


@pytest.fixture
def abandoned() -> list[str]:
    return []


@pytest.fixture
def publisher(broker: Stack, abandoned: list[str]) -> Iterator[FramePublisher]:
    url = broker.lis_env["LIS_REDIS_URL"]
    publisher = FramePublisher(sync_redis(url), abandoned.append, abandoned_after_s=0.5)
    yield publisher
    publisher.close()


def text_in_order(ear: Ear) -> str:
    by_seq = {frame.seq: frame for frame in ear.frames}
    return "".join(frame.text for _, frame in sorted(by_seq.items()) if isinstance(frame, Delta))


async def test_frames_arrive_in_order(ear: Ear, publisher: FramePublisher) -> None:
    outbox = publisher.open("r1", 1, ear.api_id)
    outbox.put(Started, "w", "b")
    for number in range(100):
        outbox.put(Delta, f"{number} ", 1, 0, False, [])
    expected = "".join(f"{number} " for number in range(100))
    await until(lambda: text_in_order(ear) == expected, "all text")
    assert [frame.seq for frame in ear.frames] == list(range(len(ear.frames)))


async def test_more_frames_than_one_message_holds(ear: Ear, publisher: FramePublisher) -> None:
    outbox = publisher.open("r1", 1, ear.api_id)
    for _ in range(2500):
        outbox.put(Started, "w", "b")
    await until(lambda: len(ear.frames) == 2500, "all frames")
    assert [frame.seq for frame in ear.frames] == list(range(2500))


@pytest.mark.parametrize("outage", ["restart", "kill", "freeze"])
async def test_an_outage_in_mid_stream_loses_no_frame(
    broker: Stack, ear: Ear, publisher: FramePublisher, outage: str
) -> None:
    """With the gap asked for on the new connection, as JobClient does, every frame is there in the end."""
    outbox = publisher.open("r1", 1, ear.api_id)
    written: list[str] = []

    def write(count: int) -> None:
        for _ in range(count):
            written.append(f"{len(written)} ")
            outbox.put(Delta, written[-1], 1, 0, False, [])

    write(50)
    await until(lambda: ear.frames, "some frames")
    connected = ear.connected
    assert broker.broker is not None
    if outage == "freeze":
        broker.broker.popen.send_signal(signal.SIGSTOP)
        write(50)
        broker.broker.popen.send_signal(signal.SIGCONT)
    else:
        broker.broker.kill() if outage == "kill" else broker.broker.stop()
        write(50)
        await asyncio.to_thread(broker.start_broker)
        await until(lambda: ear.connected > connected, "subscribed again")
    write(50)
    await until(publisher.is_flushed, "all handed over")
    publisher.resend("r1", 0)
    await until(lambda: text_in_order(ear) == "".join(written), "all text")
    same_seq = [frame for frame in ear.frames if frame.seq == 0]
    assert all(frame == same_seq[0] for frame in same_seq)


async def test_a_quiet_channel_stays_connected(broker: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pings answer for it, so silence alone is no reason to connect again."""
    monkeypatch.setattr(FrameReceiver, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(FrameReceiver, "SILENT_AFTER_S", 0.5)
    ear = Ear(broker.lis_env["LIS_REDIS_URL"])
    await ear.receiver.start()
    now = asyncio.get_running_loop().time
    quiet_until = now() + 1.5
    await until(lambda: now() > quiet_until, "quiet for three times the bound")
    assert ear.connected == 1
    await ear.receiver.stop()


async def test_a_peer_that_answers_no_ping_is_left(broker: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameReceiver, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(FrameReceiver, "SILENT_AFTER_S", 0.3)
    monkeypatch.setattr(FrameReceiver, "SUBSCRIBE_TIMEOUT_S", 0.3)
    ear = Ear(broker.lis_env["LIS_REDIS_URL"])
    await ear.receiver.start()
    await until(lambda: ear.receiver.is_connected, "subscribed")
    assert broker.broker is not None
    broker.broker.popen.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: not ear.receiver.is_connected, "noticed")
    finally:
        broker.broker.popen.send_signal(signal.SIGCONT)
    await until(lambda: ear.receiver.is_connected, "subscribed again")
    await ear.receiver.stop()


async def test_a_failure_from_outside_the_engine_arrives(broker: Stack, ear: Ear) -> None:
    failed = Failed("r1", 1, -1, ErrorCode.ENGINE_LOST, "gone")
    with sync_redis(broker.lis_env["LIS_REDIS_URL"]) as client:
        assert publish_failure(client, ear.api_id, failed) == 1
    await until(lambda: ear.frames == [failed], "the failure")


async def test_garbage_on_the_channel_is_skipped(broker: Stack, ear: Ear, publisher: FramePublisher) -> None:
    with sync_redis(broker.lis_env["LIS_REDIS_URL"]) as client:
        client.publish(reply_channel(ear.api_id), b"\xff garbage")
    publisher.open("r1", 1, ear.api_id).put(Started, "w", "b")
    await until(lambda: len(ear.frames) == 1, "the frame behind it")


async def test_a_channel_without_its_api_is_abandoned(
    broker: Stack, publisher: FramePublisher, abandoned: list[str]
) -> None:
    publisher.open("r1", 1, "nobody").put(Started, "w", "b")
    await until(lambda: abandoned == ["r1"], "given up")


async def test_listeners_tell_who_is_there(broker: Stack, ear: Ear) -> None:
    with sync_redis(broker.lis_env["LIS_REDIS_URL"]) as client:
        listeners = ReplyListeners(client, gone_after_s=0.2)
        assert listeners.has_one(ear.api_id)
        assert not listeners.has_one("nobody")
        await ear.receiver.stop()
        await until(lambda: not listeners.has_one(ear.api_id), "gone")
        await ear.receiver.start()
        await until(lambda: listeners.has_one(ear.api_id), "back")
