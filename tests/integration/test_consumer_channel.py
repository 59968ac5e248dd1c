"""kombu's channel as the worker uses it, on a real broker."""

import secrets
from collections.abc import Iterator

import pytest
from kombu.connection import Connection
from kombu.simple import SimpleQueue

from tasks.celery import celery_broker_url
from tasks.consumer import Channel
from tests.stack import Stack


@pytest.fixture
def connection(broker: Stack) -> Iterator[Connection]:
    with Connection(celery_broker_url(broker.lis_env["LIS_REDIS_URL"])) as connection:
        yield connection


@pytest.fixture
def queue(connection: Connection) -> Iterator[SimpleQueue]:
    with connection.SimpleQueue(f"queue-{secrets.token_hex(4)}") as queue:
        assert isinstance(queue.channel, Channel)
        yield queue


def test_a_message_that_is_given_back_is_the_next_one_again(queue: SimpleQueue) -> None:
    for text in ("first", "second", "third"):
        queue.put(text)
    message = queue.get(timeout=5.0)
    message.reject(requeue=True)
    assert [queue.get(timeout=5.0).payload for _ in range(3)] == ["first", "second", "third"]


def test_a_message_can_be_settled_after_its_connection_was_given_up(connection: Connection, queue: SimpleQueue) -> None:
    """It is put back when the worker has connected again."""
    for text in ("acknowledged", "rejected", "given back"):
        queue.put(text)
    messages = [queue.get(timeout=5.0) for _ in range(3)]
    connection.collect()
    messages[0].ack()
    messages[1].reject()
    messages[2].reject(requeue=True)
