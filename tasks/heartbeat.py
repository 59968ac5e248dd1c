"""The worker's heartbeat: what the API knows of a worker, renewed every second with a TTL of five."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import redis

from tasks.contracts import (
    FAILED_TTL_S,
    HEARTBEAT_INTERVAL_S,
    WORKER_TTL_S,
    WORKERS_KEY,
    WorkerState,
    WorkerStatus,
    worker_key,
)

log = logging.getLogger(__name__)


class Heartbeat:
    """Writes `state()` on a thread of its own, so that it also beats while the models load."""

    def __init__(self, client: redis.Redis, state: Callable[[], WorkerState]) -> None:
        self._redis = client
        self._state = state
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def now(self) -> None:
        """Beat at once: the state has changed. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Take the worker off the list, so that nobody waits for the TTL; one that failed stays there for
        FAILED_TTL_S, so that every API reads the reason, one that starts later too."""
        self._stopping = True
        self._wake.set()
        self._thread.join(3.0)

    def _run(self) -> None:
        reachable = True
        while not self._stopping:
            try:
                self._beat()
                reachable = True
            except redis.OutOfMemoryError:
                if reachable:
                    log.warning("redis has no memory left for the heartbeat: what it says stays as it is")
                reachable = False
                self._stay()
            except redis.RedisError as exc:
                if reachable:
                    log.warning("heartbeat not written: %s", type(exc).__name__)
                reachable = False
            self._wake.wait(HEARTBEAT_INTERVAL_S)
            self._wake.clear()
        name = self._state().name
        try:
            if self._state().status is WorkerStatus.FAILED:
                self._beat()
                return
            pipe = self._redis.pipeline()
            pipe.delete(worker_key(name))
            pipe.zrem(WORKERS_KEY, name)
            pipe.execute()
        except redis.RedisError:
            log.warning("the worker's key is left to its TTL of %s s", WORKER_TTL_S)

    def _stay(self) -> None:
        """The last state goes on: a Redis that is full takes no new one, and a worker without one counts as lost."""
        with suppress(redis.RedisError):
            self._redis.expire(worker_key(self._state().name), WORKER_TTL_S)

    def _beat(self) -> None:
        state = self._state()
        ttl_s = FAILED_TTL_S if state.status is WorkerStatus.FAILED else WORKER_TTL_S
        pipe = self._redis.pipeline()
        pipe.set(worker_key(state.name), msgspec.msgpack.encode(state), ex=ttl_s)
        pipe.zadd(WORKERS_KEY, {state.name: time.time()})
        pipe.expire(WORKERS_KEY, 86_400)
        pipe.execute()
