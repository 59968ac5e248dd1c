"""QueryClient: questions about tokens, asked of a worker beside the queue."""

import asyncio
import secrets
from typing import Any

import msgspec
import redis

from api.dispatch import RETRY_WHEN_UNAVAILABLE_S, UNAVAILABLE
from api.job_types import QueueUnavailable, RequestFailed
from api.workers_view import WorkersView
from tasks.contracts import Control, Query, Replied, control_channel

ANSWER_TIMEOUT_S = 3.0
SILENT = "The worker does not answer. Try again soon."


class QueryClient:
    """Part of JobClient, which hands it the `Replied` frames."""

    def __init__(self, client: Any, view: WorkersView, api_id: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._redis = client
        self._view = view
        self._api_id = api_id
        self._timeout_s = timeout_s
        self._asked: dict[str, asyncio.Future[Replied]] = {}

    async def ask(self, model: str, query: Query) -> dict[str, Any]:
        """See api.job_types.Jobs.query."""
        self._view.require(model, "chat")
        query_id = f"query-{secrets.token_hex(12)}"
        query = msgspec.structs.replace(query, reply_to=self._api_id)
        message = msgspec.msgpack.encode(Control(op="query", id=query_id, query=query))
        answer: asyncio.Future[Replied] = asyncio.get_running_loop().create_future()
        self._asked[query_id] = answer
        try:
            await self._send(model, message)
            async with asyncio.timeout(self._timeout_s):
                replied = await answer
        except TimeoutError:
            raise QueueUnavailable(SILENT, RETRY_WHEN_UNAVAILABLE_S) from None
        finally:
            del self._asked[query_id]
        if replied.error:
            raise RequestFailed(replied.code, replied.error, replied.param)
        return replied.values

    def on_replied(self, frame: Replied) -> None:
        answer = self._asked.get(frame.id)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    async def _send(self, model: str, message: bytes) -> None:
        """To the first ready worker that listens. Raises QueueUnavailable."""
        for worker in self._view.ready(model):
            try:
                if await self._redis.publish(control_channel(worker.name), message):
                    return
            except (redis.RedisError, OSError):
                raise QueueUnavailable(UNAVAILABLE, RETRY_WHEN_UNAVAILABLE_S) from None
        raise QueueUnavailable(SILENT, RETRY_WHEN_UNAVAILABLE_S)
