"""A real worker takes the interactive lane before the batch lane."""

import secrets
import time
from collections.abc import Iterator

import msgspec
import pytest

from tasks.celery import producer
from tasks.contracts import (
    CHAT_TASK,
    GenerateRequest,
    Lane,
    claim_id,
    claim_key,
    models_key,
    new_request_id,
    queue_name,
    reply_channel,
)
from tasks.settings import load_settings
from tests.integration.chat_client import FOREVER, chat, queue_len, wait_idle
from tests.stack import CHAT, EMBED, Stack
from tests.support import wait_until

BATCH_JOBS = 5


@pytest.fixture
def stack(slow_live: Stack) -> Iterator[Stack]:
    wait_idle(slow_live)
    yield slow_live
    wait_idle(slow_live)


def test_interactive_runs_before_batch_that_came_first(stack: Stack) -> None:
    queue = queue_name(Lane.BATCH, models_key(CHAT, EMBED))
    sender = producer(load_settings(redis_url=stack.lis_env["LIS_REDIS_URL"]))
    api_id = secrets.token_hex(4)
    ids = [new_request_id("batch") for _ in range(BATCH_JOBS)]
    with chat(stack, FOREVER) as holder, stack.redis() as client, client.pubsub() as ear:
        holder.wait_text()
        ear.subscribe(reply_channel(api_id))
        for request_id in ids:
            request = GenerateRequest(
                id=request_id, model=CHAT, reply_to=api_id, lane=Lane.BATCH, prompts=["hello"], max_tokens=1
            )
            client.set(claim_key(claim_id(request_id, 1)), "waiting", pxat=int(time.time() * 1000) + 60_000)
            sender.send_task(CHAT_TASK, [msgspec.to_builtins(request)], task_id=request_id, queue=queue)
        wait_until(lambda: client.llen(queue) == BATCH_JOBS, "all of the batch waits")
        quick = chat(stack, "hello", max_tokens=1)
        wait_until(lambda: queue_len(stack) == 1, "the chat waits behind them")
        holder.leave()
        assert quick.wait().has_done, (quick.status, quick.error)

        def started_at(request_id: str) -> int:
            return stack.log_text().find(f"generation started request_id={request_id}")

        wait_until(lambda: all(started_at(request_id) >= 0 for request_id in ids), "the batch runs, too")
        starts = [started_at(request_id) for request_id in (quick.id, *ids)]
        assert starts == sorted(starts)
    sender.close()
