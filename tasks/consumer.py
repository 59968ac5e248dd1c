"""Celery's consumer: reconnects sooner, and survives what a lost connection leaves behind."""

import logging
from functools import partial
from typing import Any

import kombu.transport.redis as kombu_redis
import redis
from celery.worker.consumer import Consumer as CeleryConsumer

log = logging.getLogger(__name__)

RECONNECT_MAX_S = 2.0


class QoS(kombu_redis.QoS):
    def append(self, message: Any, delivery_tag: Any) -> None:
        """A full Redis does not note that the message is taken, and takes it back neither: it runs without the note.

        Should the worker die meanwhile, the request is not delivered again, and its claim lapses. kombu raises here,
        and the whole worker would end.
        """
        try:
            super().append(message, delivery_tag)  # type: ignore[no-untyped-call]
        except redis.OutOfMemoryError:
            log.warning("redis has no memory left to note a message that was taken")
            super(kombu_redis.QoS, self).append(message, delivery_tag)  # type: ignore[no-untyped-call]


class Channel(kombu_redis.Channel):
    """A channel that fails as a lost connection does once its connection was given up.

    kombu 5.7 looks for the address that is gone then: an AttributeError, of which the worker would die. It meets a
    task that ran through an outage of the broker twice: its message is put back when the connection is closed, and
    acknowledged when the task ends. What stays unacknowledged is put back after the reconnect (RestoreStep).
    """

    QoS = QoS

    def is_given_up(self) -> bool:
        return self.connection is None or self.connection.client is None

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        if not self.is_given_up():
            super().basic_ack(delivery_tag, multiple)  # type: ignore[no-untyped-call]

    def basic_reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """A message that is given back is the next one to be taken; kombu's own way makes it the last."""
        if requeue and not self.is_given_up():
            self.qos.restore_by_tag(delivery_tag, leftmost=False)
        self.basic_ack(delivery_tag)

    def _create_client(self, asynchronous: bool = False) -> Any:
        if self.is_given_up():
            raise redis.ConnectionError("the connection of this channel was given up")
        return super()._create_client(asynchronous)  # type: ignore[no-untyped-call]


kombu_redis.Transport.Channel = Channel


class Consumer(CeleryConsumer):
    """Tries the broker every 0.2 to 2 s.

    Celery's own steps of 2, 4 .. 30 s, not a setting of its, find a broker that was away for 30 s another 13 s later.
    """

    def ensure_connected(self, conn: Any) -> Any:
        conn.ensure_connection = partial(
            conn.ensure_connection, interval_start=0.2, interval_step=0.3, interval_max=RECONNECT_MAX_S
        )
        return super().ensure_connected(conn)
