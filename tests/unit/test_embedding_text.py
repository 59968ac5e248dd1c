"""Cutting texts to the window and grouping them, without a model."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.engines.llamacpp.embedding_text import Marks, fit_to_window, group_texts, marks_around

MARKS = Marks(start=(101,), end=(102,))


def letters(text: str) -> list[int]:
    """A tokenizer with a token for each character."""
    return [ord(character) for character in text]


def test_marks_are_found_at_both_ends() -> None:
    assert marks_around([7, 8], [101, 7, 8, 102]) == MARKS
    assert marks_around([7], [7, 0]) == Marks(end=(0,))
    assert marks_around([7], [1, 7]) == Marks(start=(1,))
    assert marks_around([7], [7]) == Marks()


def test_cut_keeps_both_marks_and_the_beginning() -> None:
    assert fit_to_window(letters, "abcdef", 5, MARKS) == ([101, *letters("abc"), 102], True)
    assert fit_to_window(letters, "abc", 5, MARKS) == ([101, *letters("abc"), 102], False)
    assert fit_to_window(letters, "", 5, MARKS) == ([101, 102], False)


def test_only_the_head_of_a_book_is_tokenized() -> None:
    lengths: list[int] = []

    def tokenize(text: str) -> list[int]:
        lengths.append(len(text))
        return letters(text)

    cut = fit_to_window(tokenize, "x" * 10_000_000, 512, MARKS)
    assert len(cut.tokens) == 512
    assert cut.truncated
    assert lengths == [510 * 32]


def test_text_of_long_tokens_is_tokenized_whole() -> None:
    """A thousand characters a token: the head alone would lose text that fits."""
    cut = fit_to_window(lambda text: letters(text)[::1000], "x" * 400_000, 512, MARKS)
    assert len(cut.tokens) == 402
    assert not cut.truncated


@given(st.lists(st.integers(1, 50)), st.integers(1, 8), st.integers(50, 200))
def test_groups_keep_order_and_both_limits(costs: list[int], max_texts: int, max_tokens: int) -> None:
    groups = group_texts(costs, max_texts, max_tokens)
    assert [index for group in groups for index in group] == list(range(len(costs)))
    for group in groups:
        assert 1 <= len(group) <= max_texts
        assert sum(costs[index] for index in group) <= max_tokens


def test_groups_are_as_large_as_allowed() -> None:
    assert group_texts([10] * 8, 4, 512) == [range(4), range(4, 8)]
    assert group_texts([300, 300, 100, 100], 4, 512) == [range(1), range(1, 4)]
    assert group_texts([], 4, 512) == []
