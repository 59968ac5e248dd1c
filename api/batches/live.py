"""What Redis holds of batches: who works on one, that it is to stop, how far it is. All of it lapses, and may be lost.

lis:batch:{id}:lease      the process that has it
lis:batch:{id}:cancel     exists: stop; the truth is the record's status, this is heard sooner
lis:batch:{id}:progress   a msgpack `Progress`
"""

from typing import Any

import msgspec

from api.batches.records import BatchRecord, RequestCounts, TokenCounts
from tasks.contracts import claim_key

LIVE_TTL_S = 86_400  #: of cancel flag and progress

#: KEYS: lease. ARGV: owner, ttl in ms. 1: it is the owner's
LEASE = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a batch is, between two versions of its record."""

    counts: RequestCounts = RequestCounts()
    tokens: TokenCounts = TokenCounts()


class LiveBatches:
    """Every method is one round trip, and raises RedisError or OSError."""

    def __init__(self, client: Any) -> None:
        self._redis = client
        self._lease, self._release = (client.register_script(script) for script in (LEASE, RELEASE))

    async def lease(self, batch_id: str, api_id: str, ttl_s: float) -> bool:
        """Take the batch, or keep it, for `ttl_s`. False: another process has it."""
        return bool(await self._lease(keys=[_key(batch_id, "lease")], args=[api_id, max(1, round(ttl_s * 1000))]))

    async def release(self, batch_id: str, api_id: str) -> None:
        """Leave it to others; nothing happens when another process has it."""
        await self._release(keys=[_key(batch_id, "lease")], args=[api_id])

    async def ask_to_cancel(self, batch_id: str) -> None:
        await self._redis.set(_key(batch_id, "cancel"), 1, ex=LIVE_TTL_S)

    async def is_cancel_asked(self, batch_id: str) -> bool:
        """True is sure. After a restart of Redis it may be False: ask the record now and then."""
        return bool(await self._redis.exists(_key(batch_id, "cancel")))

    async def note_progress(self, batch_id: str, progress: Progress) -> None:
        await self._redis.set(_key(batch_id, "progress"), msgspec.msgpack.encode(progress), ex=LIVE_TTL_S)

    async def with_progress(self, batches: list[BatchRecord]) -> list[BatchRecord]:
        """The batches, with newer numbers where there are any."""
        running = [batch.id for batch in batches if not batch.has_ended]
        if not running:
            return batches
        values = await self._redis.mget([_key(batch_id, "progress") for batch_id in running])
        found = {
            batch_id: msgspec.msgpack.decode(value, type=Progress)
            for batch_id, value in zip(running, values, strict=True)
            if value is not None
        }
        return [_newer(batch, found.get(batch.id)) for batch in batches]

    async def has_claim(self, claim: str) -> bool:
        """False: Redis knows nothing of a request that waits, so nobody will ever run it."""
        return bool(await self._redis.exists(claim_key(claim)))

    async def forget(self, batch_id: str) -> None:
        await self._redis.delete(*(_key(batch_id, what) for what in ("lease", "cancel", "progress")))


def _newer(batch: BatchRecord, progress: Progress | None) -> BatchRecord:
    if progress is None or _done(progress.counts) < _done(batch.counts):
        return batch
    return msgspec.structs.replace(batch, counts=progress.counts, tokens=progress.tokens)


def _done(counts: RequestCounts) -> int:
    return counts.completed + counts.failed


def _key(batch_id: str, what: str) -> str:
    return f"lis:batch:{batch_id}:{what}"
