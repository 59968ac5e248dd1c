"""Whose turn a slice of a program's job is, and what its slices have come to, in Redis.

Celery delivers a message again when the connection breaks while its task runs, and when its worker was killed. The
claim of a slice tells the two apart: the first runs still, the second is taken over, a few times.
"""

from typing import Any

import msgspec

from tasks.claims import Owner, owner_of
from tasks.contracts import CLAIM_TTL_S, WorkerState, claim_key, worker_key
from tasks.ended import Kept
from tasks.program_job import RESULT_TTL_S, JobFailed

MAX_RUNS = 3  #: of a slice whose worker died each time: it may be what kills them
ENDED = b"ended"
FINISHED_TTL_S = 600  #: how long the vectors of a job that has ended are kept, should its last message come again

TAKE_OVER = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""


def job_key(job_id: str) -> str:
    """Hash of a job's slices that are done: position of the first text -> msgpack of (prompt tokens, `Kept`)."""
    return f"lis:job:{job_id}"


class Slices:
    """Of all jobs that one worker process runs. Raises redis.RedisError; every call may be repeated."""

    def __init__(self, redis: Any, owner: Owner) -> None:
        self._redis = redis
        self._owner = owner
        self._take_over = redis.register_script(TAKE_OVER)

    def take(self, job_id: str, at: int, token: str) -> bool:
        """Claim the slice that begins at text `at`, under this delivery's token. False: it runs elsewhere, or has
        ended. Raises JobFailed when its worker has died with it too often."""
        key = claim_key(f"{job_id}:{at}")
        mine = f"{token}#1".encode()
        if self._redis.set(key, mine, nx=True, ex=CLAIM_TTL_S):
            return True
        value = self._redis.get(key)
        if value is None:
            return bool(self._redis.set(key, mine, nx=True, ex=CLAIM_TTL_S))
        if value == ENDED:
            return False
        text = value.decode()
        if text.rpartition("#")[0] == token:
            return True
        if self._is_alive(owner_of(text)):
            return False
        runs = int(text.rpartition("#")[2]) + 1
        if runs > MAX_RUNS:
            raise JobFailed(f"the worker died {MAX_RUNS} times while it embedded the texts from {at} on")
        return bool(self._take_over(keys=[key], args=[value, f"{token}#{runs}", CLAIM_TTL_S]))

    def keep(self, job_id: str, at: int, prompt_tokens: int, kept: Kept) -> None:
        """The slice is done."""
        pipe = self._redis.pipeline()
        pipe.hset(job_key(job_id), str(at), msgspec.msgpack.encode((prompt_tokens, kept)))
        pipe.expire(job_key(job_id), RESULT_TTL_S)
        pipe.execute()

    def all(self, job_id: str) -> list[tuple[int, int, Kept]]:
        """Position of the first text, prompt tokens, vectors: in the order of the texts."""
        found = []
        for at, value in self._redis.hgetall(job_key(job_id)).items():
            tokens, kept = msgspec.msgpack.decode(value, type=tuple[int, Kept])
            found.append((int(at), tokens, kept))
        return sorted(found, key=lambda one: one[0])

    def end(self, job_id: str, at: int) -> None:
        """What follows the slice has been sent."""
        self._redis.set(claim_key(f"{job_id}:{at}"), ENDED, ex=CLAIM_TTL_S)

    def let_go(self, job_id: str) -> None:
        """The job has ended."""
        self._redis.expire(job_key(job_id), FINISHED_TTL_S)

    def end_with(self, job_id: str, at: int, callback_key: str, answer: bytes, ttl_s: int) -> None:
        """The job has ended: push its answer, once. Raises JobFailed when the key is no list."""
        if self._redis.get(claim_key(f"{job_id}:{at}")) == ENDED:
            return  # this call is repeated: the answer to the first was lost
        if self._redis.type(callback_key) not in (b"none", b"list"):
            raise JobFailed("'callback_key' is a key of Redis that is no list")
        pipe = self._redis.pipeline(transaction=True)
        pipe.rpush(callback_key, answer)
        pipe.expire(callback_key, ttl_s)
        pipe.set(claim_key(f"{job_id}:{at}"), ENDED, ex=CLAIM_TTL_S)
        pipe.expire(job_key(job_id), FINISHED_TTL_S)
        pipe.execute()

    def _is_alive(self, owner: Owner) -> bool:
        value = self._redis.get(worker_key(owner.worker))
        if value is None:
            return False
        return msgspec.msgpack.decode(value, type=WorkerState).boot_id == owner.boot_id
