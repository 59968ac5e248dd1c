"""Claims on a real server: every race between running, expiring and cancelling has one winner."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

from tasks.claims import ENDED_TTL_MS, AsyncClaims, Claims, Owner, owner_of
from tasks.contracts import CLAIM_TTL_S, Work, claim_id, claim_key, lane_key, lane_work_key
from tests.stack import Stack
from tests.support import wait_until

OWNER = Owner("worker", "boot")
LEASE_MS = 60_000
WORK = Work("chat", 100)


@pytest.fixture
def raw(broker: Stack) -> Iterator[Any]:
    with broker.redis() as client:
        yield client


@pytest.fixture
async def api(broker: Stack) -> AsyncIterator[AsyncClaims]:
    pool = redis.asyncio.BlockingConnectionPool.from_url(broker.lis_env["LIS_REDIS_URL"])
    client = redis.asyncio.Redis.from_pool(pool)
    yield AsyncClaims(client)
    await client.aclose()


@pytest.fixture
def worker(raw: Any) -> Claims:
    return Claims(raw, OWNER)


@pytest.fixture
def claim() -> str:
    return f"chatcmpl-{secrets.token_hex(4)}"


@pytest.fixture
def queue() -> str:
    return f"queue-{secrets.token_hex(4)}"


def test_owner_is_read_from_a_token(worker: Claims) -> None:
    assert owner_of(worker.token()) == OWNER
    assert worker.token() != worker.token()


def test_attempts_have_claims_of_their_own() -> None:
    assert claim_id("x", 1) == "x"
    assert claim_id("x", 2) != "x"


async def test_a_waiting_request_is_claimed_once(api: AsyncClaims, worker: Claims, claim: str, queue: str) -> None:
    await api.submit(claim, queue, LEASE_MS, 0)
    assert worker.claim(claim, queue, worker.token())
    assert not worker.claim(claim, queue, worker.token())


async def test_a_repeated_call_of_one_delivery_succeeds(
    api: AsyncClaims, worker: Claims, claim: str, queue: str
) -> None:
    """The first answer may have been lost on its way."""
    await api.submit(claim, queue, LEASE_MS, 0)
    token = worker.token()
    assert worker.claim(claim, queue, token)
    assert worker.claim(claim, queue, token)


async def test_a_second_delivery_does_not_run_even_after_the_first_has_ended(
    api: AsyncClaims, worker: Claims, claim: str, queue: str
) -> None:
    await api.submit(claim, queue, LEASE_MS, 0)
    token = worker.token()
    worker.claim(claim, queue, token)
    worker.release(claim, token)
    assert not worker.claim(claim, queue, worker.token())


async def test_a_withdrawn_request_is_not_claimed(api: AsyncClaims, worker: Claims, claim: str, queue: str) -> None:
    await api.submit(claim, queue, LEASE_MS, 0)
    assert await api.withdraw(claim, queue) is None
    assert not worker.claim(claim, queue, worker.token())


async def test_withdrawing_a_claimed_request_names_its_worker(
    api: AsyncClaims, worker: Claims, claim: str, queue: str
) -> None:
    await api.submit(claim, queue, LEASE_MS, 0)
    token = worker.token()
    worker.claim(claim, queue, token)
    assert await api.withdraw(claim, queue) == OWNER
    worker.release(claim, token)
    assert await api.withdraw(claim, queue) == OWNER  # it ran: that is still the answer


async def test_withdrawing_twice_and_withdrawing_nothing(api: AsyncClaims, claim: str, queue: str) -> None:
    assert await api.withdraw(claim, queue) is None
    await api.submit(claim, queue, LEASE_MS, 0)
    assert await api.withdraw(claim, queue) is None
    assert await api.withdraw(claim, queue) is None


async def test_a_claim_that_was_never_opened_is_not_taken(worker: Claims, claim: str, queue: str) -> None:
    assert not worker.claim(claim, queue, worker.token())


async def test_a_claim_lapses_by_itself(api: AsyncClaims, worker: Claims, raw: Any, claim: str, queue: str) -> None:
    await api.submit(claim, queue, 50, 0)
    wait_until(lambda: not raw.exists(claim_key(claim)), "lapsed")
    assert not worker.claim(claim, queue, worker.token())
    assert not await api.extend(claim, queue, 2**42)
    assert await api.withdraw(claim, queue) is None
    assert not raw.exists(claim_key(claim))


async def test_the_end_is_absolute(api: AsyncClaims, raw: Any, claim: str, queue: str) -> None:
    submitted = await api.submit(claim, queue, LEASE_MS, 0)
    assert raw.pexpiretime(claim_key(claim)) == submitted.now_ms + LEASE_MS
    assert await api.extend(claim, queue, submitted.now_ms + 2 * LEASE_MS)
    assert raw.pexpiretime(claim_key(claim)) == submitted.now_ms + 2 * LEASE_MS
    assert raw.zscore(lane_key(queue), claim) == submitted.now_ms + 2 * LEASE_MS


async def test_extending_does_not_touch_a_claimed_request(
    api: AsyncClaims, worker: Claims, raw: Any, claim: str, queue: str
) -> None:
    submitted = await api.submit(claim, queue, 1000, 0)
    worker.claim(claim, queue, worker.token())
    assert await api.extend(claim, queue, submitted.now_ms + 5000)
    assert raw.ttl(claim_key(claim)) > CLAIM_TTL_S - 60
    assert raw.zscore(lane_key(queue), claim) is None


async def test_release_only_by_the_owner(api: AsyncClaims, worker: Claims, raw: Any, claim: str, queue: str) -> None:
    await api.submit(claim, queue, LEASE_MS, 0)
    token = worker.token()
    worker.claim(claim, queue, token)
    worker.release(claim, worker.token())
    assert raw.pttl(claim_key(claim)) > ENDED_TTL_MS
    worker.release(claim, token)
    assert raw.pttl(claim_key(claim)) <= ENDED_TTL_MS


async def test_the_lane_is_bounded(api: AsyncClaims, queue: str) -> None:
    first = await api.submit("a", queue, LEASE_MS, 2)
    second = await api.submit("b", queue, LEASE_MS, 2)
    third = await api.submit("c", queue, LEASE_MS, 2)
    assert [first[:2], second[:2], third[:2]] == [(True, 0), (True, 1), (False, 2)]
    assert not await api.extend("c", queue, 2**42)


async def test_no_bound_when_it_is_zero(api: AsyncClaims, queue: str) -> None:
    for number in range(5):
        assert (await api.submit(f"x{number}", queue, LEASE_MS, 0)).accepted


@pytest.mark.parametrize("leave", ["claim", "withdraw", "lapse"])
async def test_who_waits_no_more_leaves_the_lane(
    api: AsyncClaims, worker: Claims, raw: Any, queue: str, leave: str
) -> None:
    await api.submit("a", queue, 50 if leave == "lapse" else LEASE_MS, 1)
    if leave == "claim":
        worker.claim("a", queue, worker.token())
    elif leave == "withdraw":
        await api.withdraw("a", queue)
    else:
        wait_until(lambda: not raw.exists(claim_key("a")), "lapsed")
    assert (await api.submit("b", queue, LEASE_MS, 1)).accepted
    raw.delete(claim_key("a"))


@pytest.mark.parametrize("leave", ["claim", "withdraw", "lapse and another comes", "lapse and somebody looks"])
async def test_who_waits_no_more_leaves_no_size_behind(
    api: AsyncClaims, worker: Claims, raw: Any, claim: str, queue: str, leave: str
) -> None:
    await api.submit(claim, queue, 50 if leave.startswith("lapse") else LEASE_MS, 0, WORK)
    assert raw.hlen(lane_work_key(queue)) == 1
    if leave == "claim":
        worker.claim(claim, queue, worker.token())
    elif leave == "withdraw":
        await api.withdraw(claim, queue)
    else:
        wait_until(lambda: not raw.exists(claim_key(claim)), "lapsed")
    if leave == "lapse and another comes":
        await api.submit(claim + "x", queue, LEASE_MS, 0, WORK)
        assert raw.hkeys(lane_work_key(queue)) == [(claim + "x").encode()]
    elif leave == "lapse and somebody looks":
        assert (await api.backlog([queue])).queues == {queue: []}
    else:
        assert raw.hlen(lane_work_key(queue)) == 0


async def test_the_backlog_is_in_the_order_of_submission(api: AsyncClaims, queue: str) -> None:
    """Also of requests that came within one millisecond, and whatever their ids."""
    claims = [f"{secrets.token_hex(4)}" for _ in range(50)]
    works = [Work("chat", number, max_tokens=7, share=2, caller="k\n:é") for number in range(50)]
    for claim, work in zip(claims, works, strict=True):
        await api.submit(claim, queue, LEASE_MS, 0, work)
    backlog = await api.backlog([queue, queue + "-empty"])
    assert [one.claim for one in backlog.queues[queue]] == claims
    assert [one.work for one in backlog.queues[queue]] == works
    assert backlog.queues[queue + "-empty"] == []


async def test_sizes_without_anybody_who_waits_are_cleared_away(api: AsyncClaims, raw: Any, queue: str) -> None:
    """A worker of an earlier version takes a request out of the lane only."""
    raw.hset(lane_work_key(queue), "left-behind", b"1:x")
    assert (await api.backlog([queue])).queues == {queue: []}
    assert not raw.exists(lane_work_key(queue))


async def test_a_claim_tells_when_it_was_taken_by_redis_clock(
    api: AsyncClaims, worker: Claims, claim: str, queue: str
) -> None:
    submitted = await api.submit(claim, queue, LEASE_MS, 0)
    taken_ms = worker.claim(claim, queue, worker.token())
    now_ms = (await api.backlog([queue])).now_ms
    assert submitted.now_ms <= taken_ms <= now_ms


async def test_one_winner_of_many_races(api: AsyncClaims, worker: Claims, queue: str) -> None:
    """A worker claims and the API withdraws at the same moment, 200 times."""
    claims = [f"race-{secrets.token_hex(4)}" for _ in range(200)]
    for claim in claims:
        await api.submit(claim, queue, LEASE_MS, 0)
    with ThreadPoolExecutor(4) as pool:
        loop = asyncio.get_running_loop()
        runs = [loop.run_in_executor(pool, worker.claim, claim, queue, worker.token()) for claim in claims]
        owners = await asyncio.gather(*(api.withdraw(claim, queue) for claim in reversed(claims)))
        ran = await asyncio.gather(*runs)
    assert [owner is not None for owner in reversed(owners)] == [taken_ms > 0 for taken_ms in ran]


async def test_one_of_many_workers_wins(api: AsyncClaims, raw: Any, claim: str, queue: str) -> None:
    workers = [Claims(raw, Owner(f"w{number}", "b")) for number in range(8)]
    await api.submit(claim, queue, LEASE_MS, 0)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda worker: worker.claim(claim, queue, worker.token()), workers))
    assert sum(taken_ms > 0 for taken_ms in won) == 1


async def test_every_key_has_a_time_to_live(api: AsyncClaims, worker: Claims, raw: Any, claim: str, queue: str) -> None:
    await api.submit(claim, queue, LEASE_MS, 0)
    await api.submit(claim + "x", queue, LEASE_MS, 0)
    worker.claim(claim, queue, worker.token())
    for key in (claim_key(claim), claim_key(claim + "x"), lane_key(queue), lane_work_key(queue)):
        assert raw.ttl(key) > 0, key
