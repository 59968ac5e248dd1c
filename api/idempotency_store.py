"""What Redis holds of requests with an `Idempotency-Key`: who runs one, and its answer. Never a prompt.

    lis:idem:key:{digest}   the run that has the key, and the digest of the request's body
    lis:idem:run:{run}      its `Record`: how far it is, and the answer's head
    lis:idem:data:{run}     the answer's body as it grows
    lis:idem:readers:{run}  who reads it in other processes, by the time (ms, Redis's clock) this lapses
    lis:idem:kept           finished answers by the time they lapse; `lis:idem:kept_bytes` is the sum of their sizes

While a run goes on its keys live for LEASE_MS and its process renews them, so that with the process the key is free
again. Writes name the place in the body they are for: one that is repeated, or finds that Redis has lost something,
leaves no hole and nothing twice.
"""

import hashlib
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

LEASE_MS = 5_000  #: of a run's keys, and of a reader
ENDED_MS = 10_000  #: how long readers in other processes can see the end of an answer that is not kept
MAX_KEPT_BYTES = 64 * 1024 * 1024  #: of all finished answers; beyond it the oldest go. The embedded broker has 256 MiB
READ_BYTES = 1024 * 1024  #: most that one read or write carries
KEPT, KEPT_BYTES = "lis:idem:kept", "lis:idem:kept_bytes"

BEGIN = """
local held = redis.call('GET', KEYS[1])
if held then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return ARGV[1]
"""

#: ARGV: holder, record, ttl, offset, data, '1' where the key becomes free. Returns how much of the body is there
WRITE = """
local held = redis.call('GET', KEYS[1]) == ARGV[1]
if ARGV[6] == '0' and not held then return -1 end
local have, offset = redis.call('STRLEN', KEYS[3]), tonumber(ARGV[4])
if have < offset then return have end
if #ARGV[5] > 0 then redis.call('SETRANGE', KEYS[3], offset, ARGV[5]) end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
if ARGV[6] == '0' then redis.call('PEXPIRE', KEYS[1], ARGV[3])
elseif held then redis.call('DEL', KEYS[1]) end
return offset + #ARGV[5]
"""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

#: ARGV: holder, record, its ttl, '1' for whether or not somebody reads
CANCEL = (
    NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
if ARGV[4] == '0' and redis.call('ZCARD', KEYS[3]) > 0 then return 0 end
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('DEL', KEYS[4])
return 1
"""
)

JOIN = (
    NOW
    + """
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
)

#: ARGV: 'digest run size', ttl, most bytes of all. Takes the oldest away until that holds
KEEP = (
    NOW
    + """
local total = tonumber(redis.call('GET', KEYS[2]) or 0)
local function forget(member)
  local digest, run, size = string.match(member, '(%S+) (%S+) (%S+)')
  redis.call('ZREM', KEYS[1], member)
  total = total - size
  return digest, run
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do forget(member) end
local _, _, size = string.match(ARGV[1], '(%S+) (%S+) (%S+)')
if redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) == 1 then total = total + size end
while total > tonumber(ARGV[3]) do
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not oldest then break end
  local digest, run = forget(oldest)
  local holder = redis.call('GET', 'lis:idem:key:' .. digest)
  if holder and string.match(holder, '%S+') == run then redis.call('DEL', 'lis:idem:key:' .. digest) end
  redis.call('DEL', 'lis:idem:run:' .. run, 'lis:idem:data:' .. run)
end
redis.call('SET', KEYS[2], string.format('%.0f', math.max(total, 0)), 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
)


class Phase(StrEnum):
    """How far a run is."""

    RUNNING = "running"
    FINISHED = "finished"  #: its answer is kept
    FAILED = "failed"  #: its readers get the answer, nobody after them
    CANCELLED = "cancelled"  #: nobody read it any more, or its process shuts down
    TOO_LARGE = "too_large"  #: it goes on, for the readers in its own process alone


class Head(NamedTuple):
    """Of an answer. `headers` are those that every reader gets alike."""

    status: int
    headers: tuple[tuple[str, str], ...]
    request_id: str

    @property
    def is_stream(self) -> bool:
        return any(name == "content-type" and value.startswith("text/event-stream") for name, value in self.headers)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """`size` (bytes of the body) is final unless the run goes on."""

    phase: Phase
    head: Head | None = None
    size: int = 0


class Keyed(NamedTuple):
    """A request with a key, by digests: of API key name and idempotency key, and of path and body."""

    digest: str
    body: str


def keyed_of(caller: str, key: str, path: str, encoding: str, body: bytes) -> Keyed:
    """`encoding` is the Content-Encoding of the body."""
    of_body = hashlib.sha256(f"{path}\0{encoding}\0".encode())
    of_body.update(body)
    return Keyed(hashlib.sha256(f"{caller}\0{key}".encode()).hexdigest(), of_body.hexdigest())


class Holder(NamedTuple):
    """Who has a key."""

    run: str
    body: str  #: digest


class IdempotencyStore:
    """Every method is one round trip of about 1 s at most, and raises RedisError or OSError."""

    def __init__(self, client: Any, ttl_s: float) -> None:
        """`ttl_s`: how long a finished answer is kept."""
        self._redis = client
        self._ttl_ms = max(1, round(ttl_s * 1000))
        self._begin, self._write, self._cancel, self._join, self._keep = (
            client.register_script(script) for script in (BEGIN, WRITE, CANCEL, JOIN, KEEP)
        )

    async def begin(self, keyed: Keyed, run: str) -> Holder:
        """The run that has the key: `run` when it was free."""
        record = msgspec.msgpack.encode(Record(Phase.RUNNING))
        held = await self._begin(keys=[_key(keyed), _record(run)], args=[_holder(keyed, run), record, LEASE_MS])
        return Holder(*held.decode().split())

    async def write(self, keyed: Keyed, run: str, record: Record, offset: int, data: bytes) -> int | None:
        """Put `data` at `offset` of the body, and renew the keys; a run that has failed leaves the key.

        Returns how much of the body is there then: less than `offset` when Redis lost some. None: the key is another's.
        """
        if record.phase is Phase.TOO_LARGE:
            await self._redis.delete(_data(run))
        is_free = record.phase is Phase.FAILED
        ttl_ms = {Phase.FINISHED: self._ttl_ms, Phase.FAILED: ENDED_MS}.get(record.phase, LEASE_MS)
        keys = [_key(keyed), _record(run), _data(run)]
        encoded = msgspec.msgpack.encode(record)
        size = await self._write(keys=keys, args=[_holder(keyed, run), encoded, ttl_ms, offset, data, int(is_free)])
        return None if size < 0 else int(size)

    async def keep(self, keyed: Keyed, run: str, size: int) -> None:
        """Count a finished answer; the oldest make room for it."""
        member = f"{keyed.digest} {run} {size}"
        await self._keep(keys=[KEPT, KEPT_BYTES], args=[member, self._ttl_ms, MAX_KEPT_BYTES])

    async def cancel(self, keyed: Keyed, run: str, *, if_alone: bool = True) -> bool:
        """Free the key and say so to readers. `if_alone`: only where no other process reads; False when one does."""
        keys = [_key(keyed), _record(run), _readers(run), _data(run)]
        record = msgspec.msgpack.encode(Record(Phase.CANCELLED))
        args = [_holder(keyed, run), record, ENDED_MS, int(not if_alone)]
        return bool(await self._cancel(keys=keys, args=args))

    async def join(self, run: str, reader: str) -> None:
        """Read, or go on reading, for LEASE_MS."""
        await self._join(keys=[_readers(run)], args=[reader, LEASE_MS])

    async def leave(self, run: str, reader: str) -> None:
        await self._redis.zrem(_readers(run), reader)

    async def poll(self, run: str, offset: int) -> tuple[Record | None, bytes]:
        """The record, and of the body what is behind `offset`, READ_BYTES at most. None: the run was lost."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(_record(run))
            pipe.getrange(_data(run), offset, offset + READ_BYTES - 1)
            record, data = await pipe.execute()
        return None if record is None else msgspec.msgpack.decode(record, type=Record), data


def _holder(keyed: Keyed, run: str) -> str:
    return f"{run} {keyed.body}"


def _key(keyed: Keyed) -> str:
    return f"lis:idem:key:{keyed.digest}"


def _record(run: str) -> str:
    return f"lis:idem:run:{run}"


def _data(run: str) -> str:
    return f"lis:idem:data:{run}"


def _readers(run: str) -> str:
    return f"lis:idem:readers:{run}"
