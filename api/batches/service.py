"""Batches: the stores and the keeper of one API process, made from the settings."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio

from api.batches.batch_store import BatchStore
from api.batches.errors import FileInUse, NotCancellable
from api.batches.file_store import FileStore
from api.batches.keeper import REDIS_ERRORS, BatchRunner, Keeper
from api.batches.live import LiveBatches
from api.batches.records import CANCELLABLE, BatchRecord, BatchStatus, advanced
from api.batches.runner import make_runner
from api.batches.storage import UnusableStorage, open_storage
from api.batches.validation import Validator
from api.job_types import Jobs
from tasks.celery import redis_url
from tasks.settings import Settings

log = logging.getLogger(__name__)

CONNECTIONS = 8  #: to Redis, of this process
WINDOW_S = 86_400  #: of a batch, `24h`


#: makes the runner of a process from its stores
MakeRunner = Callable[["Batches"], BatchRunner]


class Batches:
    """`files` and `store` work at once; the rest once it is started."""

    def __init__(
        self, settings: Settings, jobs: Jobs, make_runner: MakeRunner | None = make_runner, client: Any = None
    ) -> None:
        """`client` is an asyncio Redis client; None: one of its own. Raises SettingsInvalid."""
        self.settings = settings
        self.jobs = jobs
        self.storage = open_storage(settings)
        self.files = FileStore(self.storage, settings.files_ttl_s, settings.files_max_bytes)
        self.store = BatchStore(self.storage)
        self._make_runner = make_runner
        self._client = client
        self._live: LiveBatches | None = None
        self._keeper: Keeper | None = None

    @property
    def live(self) -> LiveBatches:
        """Raises SettingsInvalid when there is no Redis at all."""
        if self._live is None:
            if self._client is None:
                limits: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": None}
                pool = redis.asyncio.BlockingConnectionPool.from_url(
                    redis_url(self.settings), max_connections=CONNECTIONS, timeout=1.0, **limits
                )
                self._client = redis.asyncio.Redis.from_pool(pool)
            self._live = LiveBatches(self._client)
        return self._live

    async def start(self) -> None:
        """Raises SettingsInvalid when there is no Redis at all."""
        try:
            await asyncio.to_thread(self.storage.prepare)
        except UnusableStorage as exc:  # it may come back, and all else works without it
            log.error("LIS_FILES_URL cannot be used: %s", exc)
        runner = None if self._make_runner is None else self._make_runner(self)
        validator = Validator(self.settings, self.jobs, self.files)
        # not the jobs' id: what a process leaves when it is killed must not look like the next one's
        self._keeper = Keeper(
            secrets.token_hex(6),
            self.files,
            self.store,
            self.live,
            validator.validate,
            runner,
            self.settings.files_ttl_s,
        )
        await self._keeper.start()

    async def stop(self) -> None:
        if self._keeper is not None:
            await self._keeper.stop()
        if self._client is not None:
            await self._client.aclose()

    # -- what routes ask for -----------------------------------------------------------------------

    async def create(self, batch: BatchRecord) -> BatchRecord:
        await self.store.create(batch)
        if self._keeper is not None:
            self._keeper.wake()
        return batch

    async def cancel(self, batch_id: str, key_name: str) -> BatchRecord:
        """Raises BatchMissing, NotCancellable. A batch that is being cancelled stays as it is."""
        await self.store.get(batch_id, key_name)

        def change(batch: BatchRecord) -> BatchRecord:
            if batch.status is BatchStatus.CANCELLING:
                return batch
            if batch.status not in CANCELLABLE:
                raise NotCancellable(batch.id, batch.status.value)
            return advanced(batch, BatchStatus.CANCELLING, time.time())

        batch = await self.store.update(batch_id, change)
        if self._keeper is not None:
            self._keeper.wake()
        with contextlib.suppress(*REDIS_ERRORS):  # it reads the record too
            await self.live.ask_to_cancel(batch_id)
        return batch

    async def with_progress(self, batches: list[BatchRecord]) -> list[BatchRecord]:
        """With the newest numbers; with those of the records when Redis does not answer."""
        try:
            return await self.live.with_progress(batches)
        except REDIS_ERRORS:
            return batches

    async def delete_file(self, file_id: str, key_name: str) -> None:
        """Raises FileMissing, FileInUse."""
        await self.files.get(file_id, key_name)
        for batch in await self.store.unfinished():
            if batch.input_file_id == file_id:
                raise FileInUse(file_id, batch.id)
        await self.files.delete(file_id, key_name)
