"""Claims: one Redis key per request decides every race between running, expiring and cancelling it.

    submit    waiting, with an absolute expiry: when it lapses nobody can run the request
    claim     the worker takes it: waiting -> `worker#boot#delivery`
    withdraw  the API takes it (busy timeout, client gone): waiting -> gone

So a request that was answered 503 never runs, and one that runs is never answered 503. All times are Redis's own
clock (`TIME` inside the script): clocks of the hosts do not matter, and a script that a frozen broker runs late
cannot prolong anything. The waiting ids of a queue are also in a sorted set, for the lane's bound.

Celery delivers a message again when the connection to the broker breaks while its task runs. So each delivery claims
under a token of its own: a call that is repeated with the token succeeds, another delivery of the message does not.
"""

import secrets
from typing import Any, NamedTuple

from tasks.contracts import CLAIM_TTL_S, claim_key, lane_key

ENDED_TTL_MS = 60_000  #: how long an ended request's claim still tells that it ran
FIRST_LEASE_MS = (
    1_500  #: until the message is known to be in the queue; then `extend`. Under 2 s, the bound of a refusal
)

SUBMIT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local waiting = redis.call('ZCARD', KEYS[2])
if tonumber(ARGV[3]) > 0 and waiting >= tonumber(ARGV[3]) then return {0, waiting, now} end
local ends = now + tonumber(ARGV[2])
redis.call('SET', KEYS[1], 'waiting', 'PXAT', ends)
redis.call('ZADD', KEYS[2], ends, ARGV[1])
redis.call('PEXPIRE', KEYS[2], 86400000)
return {1, waiting, now}
"""

EXTEND = """
local value = redis.call('GET', KEYS[1])
if value == 'waiting' then
  redis.call('PEXPIREAT', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[2], 'XX', ARGV[2], ARGV[1])
end
return value
"""

CLAIM = """
local value = redis.call('GET', KEYS[1])
if value == ARGV[2] then return 1 end
if value ~= 'waiting' then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""

WITHDRAW = """
local value = redis.call('GET', KEYS[1])
if value and value ~= 'waiting' then return value end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return false
"""

RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""


class Submitted(NamedTuple):
    accepted: bool  #: False: the lane is full
    waiting: int  #: requests that waited on the lane before this one
    now_ms: int  #: Redis's clock


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

    async def submit(self, claim: str, queue: str, lease_ms: int, max_queue: int) -> Submitted:
        """Open the claim for `lease_ms`, unless `max_queue` ids wait already (0: no bound)."""
        accepted, waiting, now_ms = await self._submit(
            keys=[claim_key(claim), lane_key(queue)], args=[claim, lease_ms, max_queue]
        )
        return Submitted(bool(accepted), int(waiting), int(now_ms))

    async def extend(self, claim: str, queue: str, ends_ms: int) -> bool:
        """Let a waiting claim end at `ends_ms` (Redis's clock). False: it has lapsed, nobody can run it any more."""
        return await self._extend(keys=[claim_key(claim), lane_key(queue)], args=[claim, ends_ms]) is not None

    async def withdraw(self, claim: str, queue: str) -> Owner | None:
        """None: it has not run and never will. Else who took it."""
        value = await self._withdraw(keys=[claim_key(claim), lane_key(queue)], args=[claim])
        return None if value is None else owner_of(_text(value))


class Claims:
    """The side of the worker process `owner`; `claim` is a `claim_id`. Raises redis.RedisError."""

    def __init__(self, redis: Any, owner: Owner) -> None:
        self._owner = owner
        self._claim = redis.register_script(CLAIM)
        self._release = redis.register_script(RELEASE)

    def token(self) -> str:
        """Under which one delivery of a message claims."""
        return f"{self._owner.worker}#{self._owner.boot_id}#{secrets.token_hex(4)}"

    def claim(self, claim: str, queue: str, token: str) -> bool:
        """Take it; may be repeated with the same token. False: withdrawn, lapsed, or taken already."""
        return bool(self._claim(keys=[claim_key(claim), lane_key(queue)], args=[claim, token, CLAIM_TTL_S]))

    def release(self, claim: str, token: str) -> None:
        """It has ended; its claim goes soon."""
        self._release(keys=[claim_key(claim)], args=[token, ENDED_TTL_MS])


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
