"""Waiting for Redis, where an answer is owed."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis

log = logging.getLogger(__name__)

T = TypeVar("T")


def until_redis_answers(call: Callable[[], T], what: str, give_up_after_s: float = 60.0) -> T:
    """Repeat an idempotent call until it does not raise RedisError. Raises the last error after `give_up_after_s`."""
    give_up_at = time.monotonic() + give_up_after_s
    pause = threading.Event()
    while True:
        try:
            return call()
        except redis.RedisError as exc:
            if time.monotonic() > give_up_at:
                raise
            log.warning("%s waits for redis: %s", what, type(exc).__name__)
            pause.wait(0.2)
