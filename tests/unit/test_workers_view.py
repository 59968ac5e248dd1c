"""WorkersView: who is there, who is lost, and what a request is told meanwhile."""

from collections.abc import Iterator
from typing import Any

import fakeredis
import msgspec
import pytest
import redis

from api import workers_view
from api.job_types import ModelLoading, ModelNotFound, QueueUnavailable, WrongModelKind
from api.workers_view import WorkersView
from tasks.contracts import WORKERS_KEY, ModelInfo, WorkerState, WorkerStatus, worker_key

CHAT = ModelInfo(id="chat-model", kind="chat")
EMBED = ModelInfo(id="embed-model", kind="embedding", width=8)


def worker(
    name: str = "w1", boot_id: str = "b1", status: WorkerStatus = WorkerStatus.READY, **more: object
) -> WorkerState:
    fields = {"models": [CHAT, EMBED], **more}
    return WorkerState(name=name, boot_id=boot_id, status=status, **fields)  # type: ignore[arg-type]


class Broker:
    """A Redis that can go away, and the view of it."""

    def __init__(self) -> None:
        self.redis: Any = fakeredis.FakeAsyncRedis()
        self.lost: list[set[tuple[str, str]]] = []
        self.is_away = False
        self.view = WorkersView(self, self._on_change)

    async def _on_change(self, lost: set[tuple[str, str]]) -> None:
        self.lost.append(lost)

    async def zrange(self, *args: object) -> list[bytes]:
        if self.is_away:
            raise redis.ConnectionError
        names: list[bytes] = await self.redis.zrange(*args)
        return names

    async def mget(self, keys: list[str]) -> list[bytes | None]:
        values: list[bytes | None] = await self.redis.mget(keys)
        return values

    async def beat(self, *states: WorkerState) -> None:
        for state in states:
            await self.redis.set(worker_key(state.name), msgspec.msgpack.encode(state), ex=5)
            await self.redis.zadd(WORKERS_KEY, {state.name: 1})

    async def lapse(self, name: str) -> None:
        await self.redis.delete(worker_key(name))

    async def poll(self) -> set[tuple[str, str]]:
        """Who was found to be lost in one poll."""
        self.lost.clear()
        await self.view._poll()
        return set().union(*self.lost)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers_view, "RETURN_GRACE_S", 0.0)
    yield


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.mark.usefixtures("no_grace")
async def test_a_worker_whose_heartbeat_lapsed_is_lost_once(broker: Broker) -> None:
    await broker.beat(worker())
    assert await broker.poll() == set()
    await broker.lapse("w1")
    assert await broker.poll() == {("w1", "b1")}
    assert await broker.poll() == set()
    assert broker.view.workers() == []


@pytest.mark.usefixtures("no_grace")
async def test_a_worker_that_was_started_again_between_two_polls_was_lost(broker: Broker) -> None:
    await broker.beat(worker())
    await broker.poll()
    await broker.beat(worker(boot_id="b2"))
    assert await broker.poll() == {("w1", "b1")}
    assert [w.boot_id for w in broker.view.workers()] == ["b2"]


@pytest.mark.usefixtures("no_grace")
async def test_others_are_not_lost_with_it(broker: Broker) -> None:
    await broker.beat(worker("w1"), worker("w2"))
    await broker.poll()
    await broker.lapse("w1")
    assert await broker.poll() == {("w1", "b1")}
    assert [w.name for w in broker.view.workers()] == ["w2"]


async def test_workers_are_not_lost_because_redis_was_away(broker: Broker) -> None:
    """Nobody could renew a heartbeat then, so it proves nothing that they lapsed."""
    await broker.beat(worker())
    await broker.poll()
    broker.is_away = True
    assert await broker.poll() == set()
    assert not broker.view.is_reachable
    broker.is_away = False
    await broker.lapse("w1")
    assert await broker.poll() == set()
    assert [w.name for w in broker.view.workers()] == ["w1"]


async def test_a_restart_is_seen_right_after_redis_was_away(broker: Broker) -> None:
    await broker.beat(worker())
    await broker.poll()
    broker.is_away = True
    await broker.poll()
    broker.is_away = False
    await broker.beat(worker(boot_id="b2"))
    assert await broker.poll() == {("w1", "b1")}


async def test_a_worker_that_stays_away_after_redis_is_back_is_lost_in_the_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.beat(worker())
    await broker.poll()
    broker.is_away = True
    await broker.poll()
    broker.is_away = False
    await broker.lapse("w1")
    await broker.poll()
    monkeypatch.setattr(broker.view, "_grace_until", 0.0)
    assert await broker.poll() == {("w1", "b1")}


async def test_a_heartbeat_that_cannot_be_read_raises_and_the_view_goes_on(broker: Broker) -> None:
    await broker.beat(worker())
    await broker.redis.set(worker_key("w1"), b"\xff")
    with pytest.raises(msgspec.DecodeError):
        await broker.poll()
    await broker.beat(worker())
    assert await broker.poll() == set()
    assert [w.name for w in broker.view.workers()] == ["w1"]


async def test_ready_model_is_found(broker: Broker) -> None:
    await broker.beat(worker())
    await broker.poll()
    assert broker.view.require("chat-model", "chat") == CHAT
    assert broker.view.models() == [CHAT, EMBED]


async def test_unreachable_redis_is_said_first(broker: Broker) -> None:
    with pytest.raises(QueueUnavailable):
        broker.view.require("chat-model", "chat")


async def test_unknown_model_is_named_with_the_served_ones(broker: Broker) -> None:
    await broker.beat(worker())
    await broker.poll()
    with pytest.raises(ModelNotFound, match="chat-model"):
        broker.view.require("other", "chat")


async def test_wrong_kind_names_the_right_model(broker: Broker) -> None:
    await broker.beat(worker())
    await broker.poll()
    with pytest.raises(WrongModelKind, match="chat-model"):
        broker.view.require("embed-model", "chat")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (worker(status=WorkerStatus.DOWNLOADING, models=[], progress=0.25), "25%"),
        (worker(status=WorkerStatus.LOADING, models=[]), "being loaded"),
        (worker(status=WorkerStatus.FAILED, models=[], message="a.gguf is no GGUF"), "a.gguf is no GGUF"),
        (worker(status=WorkerStatus.DRAINING), "No worker is ready"),
    ],
)
async def test_a_worker_that_is_not_ready_says_why(broker: Broker, state: WorkerState, said: str) -> None:
    await broker.beat(state)
    await broker.poll()
    with pytest.raises(ModelLoading, match=said):
        broker.view.require("chat-model", "chat")


@pytest.mark.usefixtures("no_grace")
async def test_models_are_remembered_while_no_worker_is_up(broker: Broker) -> None:
    await broker.beat(worker())
    await broker.poll()
    await broker.lapse("w1")
    await broker.poll()
    assert broker.view.models() == [CHAT, EMBED]
    with pytest.raises(ModelLoading):
        broker.view.require("chat-model", "chat")
    with pytest.raises(ModelLoading):
        broker.view.require("unknown", "chat")


async def test_why_a_worker_gave_up_is_told_when_it_is_gone_until_another_comes(broker: Broker) -> None:
    await broker.beat(worker(status=WorkerStatus.FAILED, message="'x.gguf' is truncated", models=[]))
    await broker.poll()
    await broker.lapse("w1")
    await broker.poll()
    with pytest.raises(ModelLoading, match="truncated"):
        broker.view.require("chat-model", "chat")
    await broker.beat(worker("w2", status=WorkerStatus.LOADING, models=[]))
    await broker.poll()
    with pytest.raises(ModelLoading, match="loaded"):
        broker.view.require("chat-model", "chat")
