"""A runner on real stores with a lane that answers at once: what the tests of running batches share."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fakeredis
import numpy as np

from api.batches.batch_store import BatchStore
from api.batches.file_store import FileStore
from api.batches.live import LiveBatches
from api.batches.records import BatchRecord, BatchStatus, RequestCounts
from api.batches.runner.lane import Generated, SliceAnswer
from api.batches.runner.run import Runner
from api.job_types import RequestFailed
from api.protocol.choices import Answer, Choice
from tasks.contracts import ErrorCode, GenerateRequest, ModelInfo, Timings, Usage, WorkerState
from tests.unit.batch_support import batch_of, put, storage_of
from tests.unit.fake_jobs import CHAT, EMBED, WIDTH, vector, worker
from tests.unit.routes_support import settings

POISON = "POISON"  #: kills the engine each time
WRONG = "WRONG"  #: fails alone, and is named
VAGUE = "VAGUE"  #: fails whatever comes with it, and nobody says which it was


class FakeLane:
    """Answers as a worker would. `before` is awaited before each slice or generation is answered."""

    def __init__(self) -> None:
        self.slices: list[list[str]] = []
        self.generated: list[GenerateRequest] = []
        self.in_flight = self.most_in_flight = 0
        self.tells_tokens = True
        self.busy_s = 0.5  #: of a slice
        self.before: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)

    def ready(self, model: str) -> list[WorkerState]:
        return [worker()]

    def info(self, model: str) -> ModelInfo | None:
        return next(info for info in worker().models if info.id == model)

    async def embed(self, batch: BatchRecord, texts: list[str]) -> SliceAnswer:
        self.slices.append(texts)
        await self._hold()
        for index, text in enumerate(texts):
            if POISON in text:
                raise RequestFailed(ErrorCode.ENGINE_LOST, "The engine that ran this request died.")
            if VAGUE in text:
                raise RequestFailed(ErrorCode.ENGINE_ERROR, "The engine failed on this request.")
            if WRONG in text:
                raise RequestFailed(ErrorCode.INVALID_REQUEST, f"input[{index}] is wrong", f"input[{index}]")
        rows = [vector(text).tobytes() for text in texts]
        tokens = [len(text.split()) for text in texts]
        return SliceAnswer(WIDTH, rows, tokens if self.tells_tokens else [], sum(tokens), [], self.busy_s)

    async def generate(self, request: GenerateRequest, batch: BatchRecord) -> Generated:
        self.generated.append(request)
        await self._hold()
        said = request.messages[-1]["content"] if request.messages else request.prompts[0]
        if POISON in said:
            raise RequestFailed(ErrorCode.WORKER_LOST, "The worker that ran this request was lost.")
        if VAGUE in said:
            raise RuntimeError("a fault of the server's own")
        if WRONG in said:
            raise RequestFailed(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", "messages")
        answer = Answer([Choice(text=f"echo {said}")], Usage(3, 5, 1, 2), Timings())
        return Generated(answer, 12.0)

    async def _hold(self) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.before()
        finally:
            self.in_flight -= 1


class World:
    """Stores under a folder, with a Redis of their own."""

    def __init__(self, folder: Path, lane: FakeLane | None = None, **values: Any) -> None:
        self.storage = storage_of("local", folder)
        self.files = FileStore(self.storage, 86_400.0)
        self.batches = BatchStore(self.storage)
        self.live = LiveBatches(fakeredis.FakeAsyncRedis())
        self.lane = lane or FakeLane()
        self.settings = settings(**values)

    def runner(self, lane: FakeLane | None = None) -> Runner:
        chosen: Any = lane or self.lane
        return Runner(self.settings, self.files, self.batches, self.live, chosen)

    async def batch(self, data: bytes, endpoint: str = "/v1/embeddings", **values: Any) -> BatchRecord:
        """One that is validated."""
        file = await put(self.files, data)
        given = {
            "endpoint": endpoint,
            "status": BatchStatus.IN_PROGRESS,
            "model": EMBED if endpoint == "/v1/embeddings" else CHAT,
            "counts": RequestCounts(total=sum(bool(line.strip()) for line in data.splitlines())),
        }
        return await self.batches.create(batch_of(file.id, **(given | values)))

    async def ended(self, batch: BatchRecord) -> BatchRecord:
        """Run to its end."""
        await self.runner().run(batch)
        return await self.batches.get(batch.id)

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        data = b"".join([block async for block in self.files.content(file_id)])
        return [json.loads(line) for line in data.splitlines()]


async def until(predicate: Callable[[], Awaitable[bool]]) -> None:
    """Return when it is true; fail when it is not within 5 s."""
    async with asyncio.timeout(5):
        while not await predicate():  # noqa: ASYNC110 - no event tells of what is asked here
            await asyncio.sleep(0.005)


def vectors(line: dict[str, Any]) -> Any:
    return np.array([item["embedding"] for item in line["response"]["body"]["data"]], dtype="<f4")
