"""The worker's heartbeat, on fakeredis."""

import fakeredis
import msgspec

from tasks.contracts import FAILED_TTL_S, WORKER_TTL_S, WorkerState, WorkerStatus, worker_key
from tasks.heartbeat import Heartbeat


def beat_and_stop(status: WorkerStatus) -> fakeredis.FakeRedis:
    client = fakeredis.FakeRedis()
    state = WorkerState(name="w", boot_id="b", status=status, message="why")
    heartbeat = Heartbeat(client, lambda: state)
    heartbeat.start()
    heartbeat.stop()
    return client


def test_worker_that_stops_is_off_the_list_at_once() -> None:
    assert beat_and_stop(WorkerStatus.DRAINING).get(worker_key("w")) is None


def test_why_a_worker_gave_up_is_there_for_an_api_that_starts_later() -> None:
    client = beat_and_stop(WorkerStatus.FAILED)
    value = client.get(worker_key("w"))
    assert isinstance(value, bytes)
    assert msgspec.msgpack.decode(value, type=WorkerState).message == "why"
    assert WORKER_TTL_S < client.ttl(worker_key("w")) <= FAILED_TTL_S
