"""Sampling settings, as llama.cpp's samplers want them."""

import pytest

from tasks.contracts import Sampling
from tasks.engines.llamacpp.sampling import RANDOM_SEED, has_penalties, penalty_window, seed_of


@pytest.mark.parametrize("seed", [0, 7, -1, RANDOM_SEED, 2**40, -(2**63)])
def test_a_given_seed_is_kept_and_never_means_random(seed: int) -> None:
    assert 0 <= seed_of(Sampling(seed=seed)) < RANDOM_SEED
    assert seed_of(Sampling(seed=seed)) == seed_of(Sampling(seed=seed))


def test_no_seed_is_another_one_each_time() -> None:
    assert len({seed_of(Sampling()) for _ in range(20)}) > 1


def test_the_whole_window_is_looked_back_at_minus_one() -> None:
    assert penalty_window(Sampling(repeat_last_n=-1), n_ctx=512) == 512
    assert penalty_window(Sampling(repeat_last_n=64), n_ctx=512) == 64


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), False),
        (Sampling(repeat_penalty=1.1), True),
        (Sampling(presence_penalty=0.5), True),
        (Sampling(frequency_penalty=-0.5), True),
        (Sampling(repeat_penalty=1.1, repeat_last_n=0), False),
    ],
)
def test_penalties_cost_nothing_when_neutral(sampling: Sampling, expected: bool) -> None:
    assert has_penalties(sampling) is expected
