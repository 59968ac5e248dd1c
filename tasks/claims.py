"""Claims: one Redis key per request decides every race between running, expiring and cancelling it.

    submit    waiting, with an absolute expiry: when it lapses nobody can run the request
    claim     the worker takes it: waiting -> the worker's name
    withdraw  the API takes it (busy timeout, client gone): waiting -> gone

So a request that was answered 503 never runs, and one that runs is never answered 503. All times are Redis's own
clock (`TIME` inside the script): clocks of the hosts do not matter, and a script that a frozen broker runs late
cannot prolong anything. The waiting ids of a queue are also in a sorted set, for the lane's bound.
"""

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


class AsyncClaims:
    """The API's side. Every method raises redis.RedisError when the broker does not answer in time."""

    def __init__(self, redis: Any) -> None:
        self._submit = redis.register_script(SUBMIT)
        self._extend = redis.register_script(EXTEND)
        self._withdraw = redis.register_script(WITHDRAW)

    async def submit(self, request_id: str, queue: str, lease_ms: int, max_queue: int) -> Submitted:
        """Open the claim for `lease_ms`, unless `max_queue` ids wait already (0: no bound)."""
        accepted, waiting, now_ms = await self._submit(
            keys=[claim_key(request_id), lane_key(queue)], args=[request_id, lease_ms, max_queue]
        )
        return Submitted(bool(accepted), int(waiting), int(now_ms))

    async def extend(self, request_id: str, queue: str, ends_ms: int) -> str | None:
        """Let a waiting claim end at `ends_ms` (Redis's clock). The claim's value; None: it has lapsed."""
        return _text(await self._extend(keys=[claim_key(request_id), lane_key(queue)], args=[request_id, ends_ms]))

    async def withdraw(self, request_id: str, queue: str) -> str | None:
        """None: the request has not run and never will. Else the name of the worker that took it."""
        return _text(await self._withdraw(keys=[claim_key(request_id), lane_key(queue)], args=[request_id]))


class Claims:
    """The worker's side."""

    def __init__(self, redis: Any, worker: str) -> None:
        self._worker = worker
        self._claim = redis.register_script(CLAIM)
        self._release = redis.register_script(RELEASE)

    def claim(self, request_id: str, queue: str) -> bool:
        """Take the request. False: it was withdrawn, has lapsed, or somebody has it already."""
        return bool(
            self._claim(keys=[claim_key(request_id), lane_key(queue)], args=[request_id, self._worker, CLAIM_TTL_S])
        )

    def release(self, request_id: str) -> None:
        """The request has ended; its claim goes soon."""
        self._release(keys=[claim_key(request_id)], args=[self._worker, ENDED_TTL_MS])


def _text(value: bytes | str | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
