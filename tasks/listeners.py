"""Whether the API process that sent a request is still there to hear its answer."""

import threading
import time

import redis

from tasks.contracts import reply_channel

GONE_AFTER_S = 3.0  #: one that only reconnects is back within a second


class ReplyListeners:
    """Asks Redis who listens, so that what a killed API process left in the queue does not run. From any thread."""

    def __init__(self, client: redis.Redis, gone_after_s: float = GONE_AFTER_S) -> None:
        self._redis = client
        self._gone_after_s = gone_after_s
        self._gone: set[str] = set()  #: waited for already; its next request is not waited for again
        self._pause = threading.Event()

    def has_one(self, api_id: str) -> bool:
        """False when nobody has listened for `gone_after_s`. Raises redis.RedisError."""
        give_up_at = time.monotonic() + (0.0 if api_id in self._gone else self._gone_after_s)
        while not self._is_heard(api_id):
            if time.monotonic() >= give_up_at:
                self._gone.add(api_id)
                return False
            self._pause.wait(0.05)
        self._gone.discard(api_id)
        return True

    def _is_heard(self, api_id: str) -> bool:
        ((_, listeners),) = self._redis.pubsub_numsub(reply_channel(api_id))
        return int(listeners) > 0
