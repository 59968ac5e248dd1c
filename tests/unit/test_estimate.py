"""Expected waits from measured rates and known work."""

import pytest

from api.estimate import (
    GUESS_DECODE_TOKENS_PER_S,
    MIN_ERRORS,
    EstimateErrors,
    Forecast,
    Queue,
    Speed,
    serving_order,
)
from tasks.claims import Waiting
from tasks.contracts import Lane, Rates, RunningWork, Work

#: 4 characters a token, 100 tokens a second of prompt, 10 of answer; every answer has 20 tokens when it may
RATES = Rates(
    chats=9,
    prefill_tokens_per_s=100,
    decode_tokens_per_s=10,
    chars_per_token=4,
    overhead_s=0.5,
    lengths=[20] * 9,
    embeddings=9,
    embedding_chars_per_s=1000,
    embedding_overhead_s=0.1,
)
SPEED = Speed([RATES], 1024, 2048)
FIRST = Queue(Lane.INTERACTIVE, 0)
SECOND = Queue(Lane.INTERACTIVE, 1)
BATCH = Queue(Lane.BATCH, 0)
CHAT = Work("chat", 400)  #: takes 0.5 + 1.0 + 2.0 s


def waiting(claim: str, work: Work = CHAT, at: int = 0) -> Waiting:
    return Waiting(claim, at, work)


def running(elapsed_s: float, work: Work = CHAT, queue: Queue = FIRST) -> tuple[RunningWork, float]:
    return RunningWork("r", queue.lane.value, 1_000, work), elapsed_s


@pytest.mark.parametrize(
    ("work", "run_s"),
    [
        (CHAT, 3.5),
        (Work("chat", 400, max_tokens=5), 2.0),
        (Work("chat", 400, max_tokens=500), 3.5),
        (Work("chat", 400, choices=3), 7.5),
        (Work("chat", 0), 2.5),
        (Work("chat", 4 * 2047), 0.5 + 20.47 + 0.1),  # the window leaves one token
        (Work("embedding", 2000), 2.1),
    ],
)
def test_run_time(work: Work, run_s: float) -> None:
    assert SPEED.run_s(work) == pytest.approx(run_s)


def test_of_a_cached_prompt_only_the_rest_is_prefilled() -> None:
    rates = Rates(chats=9, prefill_tokens_per_s=100, decode_tokens_per_s=10, chars_per_token=4, fresh=0.5, lengths=[20])
    assert Speed([rates], 1024, 2048).run_s(CHAT) == pytest.approx(0.5 + 2.0)


@pytest.mark.parametrize(
    ("work", "elapsed_s", "left_s"),
    [
        (CHAT, 0.0, 3.5),
        (CHAT, 1.0, 2.5),
        (CHAT, 2.5, 1.0),
        (CHAT, 1000.0, 0.175),  # never nothing
        (Work("embedding", 2000), 1.1, 1.0),
        (Work("embedding", 2000), 50.0, 0.105),
        (Work("chat", 400, choices=2), 2.5, 3.0),
    ],
)
def test_time_left_of_what_runs(work: Work, elapsed_s: float, left_s: float) -> None:
    assert SPEED.remaining_s(work, elapsed_s) == pytest.approx(left_s, abs=0.001)


def test_a_longer_answer_than_expected_is_one_of_the_long_ones() -> None:
    """At 40 tokens it is no more one of those that end at 10: what is left is not counted from the mean."""
    rates = Rates(
        chats=9, prefill_tokens_per_s=100, decode_tokens_per_s=10, chars_per_token=4, lengths=[10] * 9 + [110]
    )
    speed = Speed([rates], 1024, 2048)
    assert speed.run_s(CHAT) == pytest.approx(3.0)
    assert speed.remaining_s(CHAT, 1.0 + 4.0) == pytest.approx(7.0)


def test_several_workers_are_averaged_and_one_without_a_measurement_does_not_count() -> None:
    slow = Rates(chats=5, prefill_tokens_per_s=50, decode_tokens_per_s=30, chars_per_token=4)
    speed = Speed([RATES, slow, Rates()], 1024, 2048)
    assert (speed.prefill, speed.decode) == (75, 20)


def test_nothing_measured_is_a_slow_guess_and_says_so() -> None:
    forecast = Forecast(Speed([], 1024, 2048), 1, [running(0.0)], {FIRST: [waiting("a")]})
    estimate = forecast.of("a")
    assert estimate is not None
    assert not estimate.is_measured
    assert estimate.wait_s > 256 / GUESS_DECODE_TOKENS_PER_S


def test_a_free_slot_means_no_wait() -> None:
    forecast = Forecast(SPEED, 2, [running(0.0)], {})
    assert forecast.of_new(FIRST) == (0.0, True, 1)


def test_waits_add_up_on_one_slot() -> None:
    forecast = Forecast(
        SPEED, 1, [running(1.0)], {FIRST: [waiting("a"), waiting("b", Work("chat", 400, max_tokens=5))]}
    )
    assert forecast.of("a") == pytest.approx((2.5, True, 1))
    assert forecast.of("b") == pytest.approx((6.0, True, 2))
    assert forecast.of_new(FIRST) == pytest.approx((8.0, True, 3))
    assert forecast.of("nobody") is None


def test_the_slot_that_is_free_first_takes_the_next() -> None:
    queues = {FIRST: [waiting("a"), waiting("b"), waiting("c")]}
    forecast = Forecast(SPEED, 2, [running(0.5), running(2.5)], queues)
    starts = [estimate.wait_s for claim in "abc" if (estimate := forecast.of(claim)) is not None]
    assert starts == pytest.approx([1.0, 3.0, 4.5])


def test_more_running_than_slots_is_one_that_is_just_ending() -> None:
    forecast = Forecast(SPEED, 1, [running(2.5), running(0.0)], {})
    assert forecast.of_new(FIRST).wait_s == pytest.approx(3.5)


def test_batch_waits_for_all_interactive_and_not_the_reverse() -> None:
    queues = {BATCH: [waiting("b", at=1)], FIRST: [waiting("a", at=2)]}
    forecast = Forecast(SPEED, 1, [running(3.0)], queues)
    assert [forecast.of(claim).position for claim in "ab" if forecast.of(claim)] == [1, 2]  # type: ignore[union-attr]
    assert forecast.of_new(FIRST).position == 2
    assert forecast.of_new(BATCH).position == 3


def test_of_an_unmeasured_kind_ahead_the_wait_is_a_guess() -> None:
    chats_only = Rates(chats=9, prefill_tokens_per_s=100, decode_tokens_per_s=10, chars_per_token=4, lengths=[20])
    queues = {FIRST: [waiting("a", Work("embedding", 100)), waiting("b")]}
    forecast = Forecast(Speed([chats_only], 1024, 2048), 1, [running(0.0)], queues)
    measured = {claim: estimate.is_measured for claim in "ab" if (estimate := forecast.of(claim)) is not None}
    assert measured == {"a": True, "b": False}


def order(queues: dict[Queue, list[Waiting]], last_turn: dict[Queue, int] | None = None) -> str:
    return "".join(one.claim for one in serving_order(queues, last_turn or {}))


@pytest.mark.parametrize(
    ("lines", "last_turn", "served"),
    [
        ({FIRST: "abc"}, {}, "abc"),
        ({FIRST: "abc", SECOND: "x"}, {}, "axbc"),
        ({FIRST: "abc", SECOND: "x"}, {FIRST: 5}, "xabc"),
        ({FIRST: "ab", SECOND: "xyz"}, {FIRST: 5, SECOND: 9}, "axbyz"),
        ({BATCH: "pq", SECOND: "xy"}, {SECOND: 9}, "xypq"),
        ({}, {}, ""),
    ],
)
def test_serving_order(lines: dict[Queue, str], last_turn: dict[Queue, int], served: str) -> None:
    queues = {queue: [waiting(claim) for claim in line] for queue, line in lines.items()}
    assert order(queues, last_turn) == served


def test_one_key_that_floods_delays_another_by_one_request() -> None:
    flood = {FIRST: [waiting(f"f{number}") for number in range(500)]}
    forecast = Forecast(SPEED, 1, [running(0.0)], flood)
    assert forecast.of_new(SECOND).position == 1
    assert forecast.of_new(FIRST).position == 501


def test_the_error_is_the_median_relative_to_the_wait() -> None:
    errors = EstimateErrors()
    for estimated_s, waited_s in [(1.1, 1.0), (0.8, 1.0), (3.0, 2.0), (10.0, 10.0)]:
        errors.add(estimated_s, waited_s)
    assert errors.median() is None
    errors.add(4.0, 8.0)
    assert errors.count == MIN_ERRORS
    assert errors.median() == pytest.approx(0.2)


def test_a_wait_too_short_to_tell_counts_for_nothing() -> None:
    errors = EstimateErrors()
    errors.add(5.0, 0.01)
    assert errors.count == 0
