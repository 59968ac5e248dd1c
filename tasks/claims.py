"""Claims: one Redis key per request decides every race between running, expiring and cancelling it.

    submit    waiting, with an absolute expiry: when it lapses nobody can run the request
    claim     the worker takes it: waiting -> `worker#boot#delivery`
    withdraw  the API takes it (busy timeout, client gone): waiting -> gone

So a request that was answered 503 never runs, and one that runs is never answered 503. All times are Redis's own
clock (`TIME` inside the script): clocks of the hosts do not matter, and a script that a frozen broker runs late
cannot prolong anything. The waiting ids of a queue are also in a sorted set, for the lane's bound, and in a hash with
the size of each request, from which waits are estimated; whatever takes an id out of the one takes it out of the other.

So a deadline is the claim's expiry and nothing else: it holds for every worker, whatever its own clock says, and for
messages that a frozen broker delivers late.

Celery delivers a message again when the connection to the broker breaks while its task runs. So each delivery claims
under a token of its own: a call that is repeated with the token succeeds, another delivery of the message does not.
"""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tasks.contracts import CLAIM_TTL_S, Work, claim_key, lane_key, lane_work_key

ENDED_TTL_MS = 60_000  #: how long an ended request's claim still tells that it ran
QUEUE_TTL_MS = 30 * 86_400_000  #: of messages that no worker has come for; each new one prolongs it
FIRST_LEASE_MS = (
    1_500  #: until the message is known to be in the queue; then `extend`. Under 2 s, the bound of a refusal
)

#: `now` in ms; `expire` takes what has lapsed out of a queue's set and hash
PRELUDE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function expire(lane, work)
  for _, claim in ipairs(redis.call('ZRANGEBYSCORE', lane, '-inf', now)) do redis.call('HDEL', work, claim) end
  redis.call('ZREMRANGEBYSCORE', lane, '-inf', now)
  return redis.call('ZCARD', lane)
end
"""

SUBMIT = (
    PRELUDE
    + """
local waiting = expire(KEYS[2], KEYS[3])
if tonumber(ARGV[3]) > 0 and waiting >= tonumber(ARGV[3]) then return {0, waiting, now} end
local ends = now + tonumber(ARGV[2])
redis.call('SET', KEYS[1], 'waiting', 'PXAT', ends)
redis.call('ZADD', KEYS[2], ends, ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], string.format('%.0f:', time[1] * 1000000 + time[2]) .. ARGV[4])
redis.call('PEXPIRE', KEYS[2], 86400000)
redis.call('PEXPIRE', KEYS[3], 86400000)
return {1, waiting, now}
"""
)

EXTEND = """
local value = redis.call('GET', KEYS[1])
if value == 'waiting' then
  redis.call('PEXPIREAT', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[2], 'XX', ARGV[2], ARGV[1])
end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return value
"""

CLAIM = (
    PRELUDE
    + """
local value = redis.call('GET', KEYS[1])
if value == ARGV[2] then return now end
if value ~= 'waiting' then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return now
"""
)

WITHDRAW = """
local value = redis.call('GET', KEYS[1])
if value and value ~= 'waiting' then return value end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return false
"""

RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""

#: for each pair of keys, set and hash of a queue, the hash; a hash without a set is what something else left behind
BACKLOG = (
    PRELUDE
    + """
local found = {now}
for at = 1, #KEYS, 2 do
  if expire(KEYS[at], KEYS[at + 1]) == 0 then redis.call('DEL', KEYS[at + 1]) end
  found[#found + 1] = redis.call('HGETALL', KEYS[at + 1])
end
return found
"""
)


class Submitted(NamedTuple):
    accepted: bool  #: False: the lane is full
    waiting: int  #: requests that waited on the lane before this one
    now_ms: int  #: Redis's clock


class Waiting(NamedTuple):
    """A request that nobody has taken yet."""

    claim: str
    submitted_us: int  #: unix time on Redis's clock; no two are equal
    work: Work


class Backlog(NamedTuple):
    now_ms: int  #: Redis's clock
    queues: dict[str, list[Waiting]]  #: in the order of submission


class Owner(NamedTuple):
    """Who took a request: a worker process, told from its successors of the same name by the boot id."""

    worker: str
    boot_id: str


def owner_of(value: str) -> Owner:
    """The owner in a claim's value."""
    worker, _, rest = value.partition("#")
    return Owner(worker, rest.partition("#")[0])


class AsyncClaims:
    """The API's side; `claim` is a `claim_id`. Every method raises redis.RedisError when the broker does not answer."""

    def __init__(self, redis: Any) -> None:
        self._submit = redis.register_script(SUBMIT)
        self._extend = redis.register_script(EXTEND)
        self._withdraw = redis.register_script(WITHDRAW)
        self._backlog = redis.register_script(BACKLOG)

    async def submit(
        self, claim: str, queue: str, lease_ms: int, max_queue: int, work: Work | None = None
    ) -> Submitted:
        """Open the claim for `lease_ms`, unless `max_queue` ids wait already (0: no bound)."""
        size = msgspec.msgpack.encode(work or Work("chat", 0))
        accepted, waiting, now_ms = await self._submit(
            keys=_keys(claim, queue), args=[claim, lease_ms, max_queue, size]
        )
        return Submitted(bool(accepted), int(waiting), int(now_ms))

    async def extend(self, claim: str, queue: str, ends_ms: int) -> bool:
        """Let a waiting claim end at `ends_ms` (Redis's clock). False: it has lapsed, nobody can run it any more."""
        keys = [claim_key(claim), lane_key(queue), queue]  # Celery keeps a queue's messages under its plain name
        return await self._extend(keys=keys, args=[claim, ends_ms, QUEUE_TTL_MS]) is not None

    async def withdraw(self, claim: str, queue: str) -> Owner | None:
        """None: it has not run and never will. Else who took it."""
        value = await self._withdraw(keys=_keys(claim, queue), args=[claim])
        return None if value is None else owner_of(_text(value))

    async def backlog(self, queues: Sequence[str]) -> Backlog:
        """What waits on these queues. Takes some 5 us of Redis's time for each request."""
        keys = [key for queue in queues for key in (lane_key(queue), lane_work_key(queue))]
        now_ms, *hashes = await self._backlog(keys=keys, args=[])
        return Backlog(int(now_ms), dict(zip(queues, map(_waiting, hashes), strict=True)))


class Claims:
    """The side of the worker process `owner`; `claim` is a `claim_id`. Raises redis.RedisError."""

    def __init__(self, redis: Any, owner: Owner) -> None:
        self._owner = owner
        self._claim = redis.register_script(CLAIM)
        self._release = redis.register_script(RELEASE)

    def token(self) -> str:
        """Under which one delivery of a message claims."""
        return f"{self._owner.worker}#{self._owner.boot_id}#{secrets.token_hex(4)}"

    def claim(self, claim: str, queue: str, token: str) -> int:
        """Take it; may be repeated with the same token. The time now (unix ms, Redis's clock); 0: it was withdrawn,
        has lapsed, or was taken already."""
        return int(self._claim(keys=_keys(claim, queue), args=[claim, token, CLAIM_TTL_S]))

    def release(self, claim: str, token: str) -> None:
        """It has ended; its claim goes soon."""
        self._release(keys=[claim_key(claim)], args=[token, ENDED_TTL_MS])


def _keys(claim: str, queue: str) -> list[str]:
    return [claim_key(claim), lane_key(queue), lane_work_key(queue)]


def _waiting(fields: list[bytes]) -> list[Waiting]:
    """From a hash as HGETALL gives it, in the order of submission."""
    found = []
    for claim, value in zip(fields[::2], fields[1::2], strict=True):
        submitted_us, _, work = value.partition(b":")
        found.append(Waiting(claim.decode(), int(submitted_us), msgspec.msgpack.decode(work, type=Work)))
    return sorted(found, key=lambda waiting: waiting.submitted_us)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
