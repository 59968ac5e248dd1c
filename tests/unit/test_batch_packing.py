"""Slices that end within a second."""

from collections import deque

import pytest

from api.batches.runner.embeddings import Text
from api.batches.runner.packing import FIRST_TOKENS, LEAST_TOKENS, MAX_TEXTS, Pace, pack
from tasks.contracts import Rates


def texts(*lengths: int) -> deque[Text]:
    return deque(Text(place, 0, "x" * length) for place, length in enumerate(lengths))


def settled(tokens_per_s: float, slice_tokens: int = 4096, tokens_per_char: float = 0.25) -> Pace:
    """After many slices at that speed."""
    pace = Pace(slice_tokens)
    for _ in range(40):
        tokens = pace.budget()
        pace.measured(round(tokens / tokens_per_char), tokens, tokens / tokens_per_s)
    return pace


@pytest.mark.parametrize(
    ("tokens_per_s", "expected"), [(100.0, 100), (1000.0, 1000), (1_000_000.0, 4096), (0.5, LEAST_TOKENS)]
)
def test_a_slice_takes_what_the_engine_does_in_a_second_up_to_the_setting(tokens_per_s: float, expected: int) -> None:
    assert settled(tokens_per_s).budget() == pytest.approx(expected, rel=0.02)


def test_the_first_slice_is_small_and_the_next_ones_grow_step_by_step() -> None:
    pace = Pace(4096)
    budgets = []
    for _ in range(5):
        budgets.append(pace.budget())
        pace.measured(4 * budgets[-1], budgets[-1], budgets[-1] / 100_000)
    assert budgets == [FIRST_TOKENS, 512, 1024, 2048, 4096]


def test_a_small_setting_bounds_the_first_slice_too() -> None:
    assert Pace(20).budget() == 20


def test_an_engine_that_becomes_slower_gets_smaller_slices_soon() -> None:
    pace = settled(4000.0)
    for _ in range(6):
        tokens = pace.budget()
        pace.measured(4 * tokens, tokens, tokens / 400)
    assert pace.budget() < 800


def test_what_a_worker_has_measured_holds_until_a_slice_has_ended() -> None:
    rates = Rates(embedding_chars_per_s=4000.0, embedding_tokens_per_s=1000.0)
    pace = Pace(4096)
    pace.begin_with(Rates())
    assert pace.budget() == FIRST_TOKENS
    pace.begin_with(rates)
    assert pace.budget() == 1000
    assert pace.tokens_of("x" * 400) == 102
    pace.measured(600, 300, 0.5)
    pace.begin_with(rates)
    assert pace.budget() == 600


def test_a_slice_holds_what_fits_and_one_text_at_least() -> None:
    pace = settled(1000.0)  # 4 characters a token
    left = texts(8000, 2000, 1800, 200, 40)
    assert [len(item.text) for item in pack(left, pace)] == [8000]
    assert [len(item.text) for item in pack(left, pace)] == [2000, 1800]
    assert [len(item.text) for item in pack(left, pace)] == [200, 40]
    assert not left


def test_a_text_counts_no_more_than_the_window_it_is_cut_to() -> None:
    pace = settled(1000.0)
    pace.n_ctx = 100
    assert len(pack(texts(*[100_000] * 30), pace)) == 10


def test_short_texts_are_bounded_in_number_and_by_the_size_of_their_vectors() -> None:
    pace = settled(1_000_000.0)
    assert len(pack(texts(*[1] * 2000), pace)) == MAX_TEXTS
    pace.width = 4096
    assert len(pack(texts(*[1] * 2000), pace)) == 128
