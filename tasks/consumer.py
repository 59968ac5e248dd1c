"""Celery's consumer, reconnecting sooner."""

from functools import partial
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer

RECONNECT_MAX_S = 2.0


class Consumer(CeleryConsumer):
    """Tries the broker every 0.2 to 2 s.

    Celery's own steps of 2, 4 .. 30 s, not a setting of its, find a broker that was away for 30 s another 13 s later.
    """

    def ensure_connected(self, conn: Any) -> Any:
        conn.ensure_connection = partial(
            conn.ensure_connection, interval_start=0.2, interval_step=0.3, interval_max=RECONNECT_MAX_S
        )
        return super().ensure_connected(conn)
