"""What a program may ask of `tasks.embed`, how it is cut, and what monitors are shown of it."""

from typing import Any

import numpy as np
import pytest

from tasks.ended import Kept
from tasks.program_job import JobFailed, parse_job, result_of, slice_size
from tasks.shown import summary


@pytest.mark.parametrize(
    ("texts", "size"),
    [(["abc"], 1), (["a" * 99], 1), (["aaa", "bbb", "c"], 2), (["a", "b", "c"], 3), (["a", "b" * 9], 1)],
)
def test_a_slice_has_at_least_one_text_and_no_more_characters_than_told(texts: list[str], size: int) -> None:
    assert slice_size(texts, 6) == size


def test_a_slice_counts_what_each_text_costs_beside_its_characters() -> None:
    assert slice_size(["a"] * 100, 70, 6) == 10


def test_a_text_that_is_not_unicode_is_named() -> None:
    with pytest.raises(JobFailed, match=r"'texts\[11\]' has half of a surrogate pair"):
        parse_job({"texts": ["a", "a\ud800"], "done": 10})


def test_the_result_joins_the_slices_in_order() -> None:
    rows = np.arange(6, dtype="<f4").reshape(3, 2)
    slices = [(0, 5, Kept(2, rows[:2].tobytes(), [1])), (2, 7, Kept(2, rows[2:].tobytes(), [0]))]
    result = result_of("m", slices, "float")
    assert result == {"model": "m", "width": 2, "vectors": rows.tolist(), "truncated": [1, 2], "prompt_tokens": 12}


def test_the_place_of_an_empty_text_is_counted_from_the_whole_job() -> None:
    with pytest.raises(JobFailed, match=r"'texts\[11\]' is empty"):
        parse_job({"texts": ["a", ""], "done": 10})


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ([{"model": "m", "messages": [{"role": "user", "content": "secret"}]}], {}, "m"),
        ([{"model": "m", "texts": ["secret"]}], {}, "m, 1 text"),
        ([], {"model": "m", "texts": ["secret", "b"]}, "m, 2 texts"),
        ([], {"texts": "secret"}, ""),
        (["secret"], {"x": "secret"}, ""),
        ("secret", "secret", ""),
        ([], {"model": ["secret"]}, ""),
    ],
)
def test_monitors_are_shown_no_text(args: Any, kwargs: Any, shown: str) -> None:
    assert summary(args, kwargs) == shown


def test_with_the_setting_they_are_shown_the_beginning_of_it() -> None:
    shown = summary([], {"model": "m", "texts": ["secret " * 1000]}, with_text=True)
    assert shown.startswith("m, 1 text, ['secret secret")
    assert len(shown) < 1100
