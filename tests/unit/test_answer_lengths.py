"""Expected lengths of answers from a sample of which some were cut short."""

import random
import statistics

import pytest

from api.answer_lengths import GUESS_TOKENS, AnswerLengths


@pytest.mark.parametrize(
    ("ended", "cut", "limit", "expected"),
    [
        ([10, 20, 30], [], 1000, 20.0),
        ([10, 20, 30], [], 15, (10 + 15 + 15) / 3),
        ([10, 20, 30], [], 5, 5.0),
        ([10, 10, 10, 10], [], 8, 8.0),
        ([10, 30], [20], 1000, 10 / 3 + 30 * 2 / 3),  # the one that was cut at 20 would have had 30
        ([20], [10, 10, 10], 1000, 20.0),  # what was cut at 10 says nothing of those beyond
    ],
)
def test_expected_tokens(ended: list[int], cut: list[int], limit: int, expected: float) -> None:
    assert AnswerLengths(ended, cut).expected(limit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("done", "expected"),
    [(0, 25.0), (10, 20.0), (25, 10.0), (35, 5.0)],
)
def test_what_is_still_to_come_counts_only_answers_that_were_longer(done: int, expected: float) -> None:
    assert AnswerLengths([10, 20, 30, 40], []).expected(1000, done) == pytest.approx(expected)


def test_an_answer_longer_than_all_before_still_has_something_to_come() -> None:
    left = AnswerLengths([10, 20, 30], []).expected(1000, 50)
    assert 1 <= left <= 60


def test_never_more_than_the_limit_leaves() -> None:
    lengths = AnswerLengths([10, 500], [100])
    for limit in (1, 50, 200, 1000):
        for done in (0, 20, 150, 600):
            assert 0 <= lengths.expected(limit, done) <= max(0, limit - done)


def test_where_all_were_cut_a_higher_limit_means_a_longer_answer() -> None:
    lengths = AnswerLengths([], [16] * 20)
    assert lengths.expected(16) == pytest.approx(16)
    assert 32 < lengths.expected(64) <= 64


def test_without_a_sample_the_limit_up_to_a_guess() -> None:
    assert AnswerLengths([], []).expected(40) == 40
    assert AnswerLengths([], []).expected(100_000) == GUESS_TOKENS


def test_no_bias_where_every_other_request_was_cut() -> None:
    """The plain mean of the same sample is a quarter too small."""
    rng = random.Random(3)
    lengths = [rng.randint(8, 96) for _ in range(4000)]
    limits = [rng.choice([16, 48, 96]) for _ in lengths]
    ended = [length for length, limit in zip(lengths, limits, strict=True) if length <= limit]
    cut = [limit for length, limit in zip(lengths, limits, strict=True) if length > limit]
    truth = statistics.mean(lengths)
    assert AnswerLengths(ended, cut).expected(96) == pytest.approx(truth, rel=0.05)
    assert statistics.mean(ended + cut) < 0.75 * truth
