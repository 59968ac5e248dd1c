"""Log probabilities: their numbers, and the text that each belongs to."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tasks.contracts import TokenLogprob
from tasks.engines.llamacpp.logprobs import LEAST, Distribution, TokenAligner


def logits(*values: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.array(values, dtype=np.float32)


def test_the_numbers_are_those_of_a_softmax() -> None:
    values = [3.0, -1.0, 0.5, 2.0]
    distribution = Distribution(logits(*values), n_top=4)
    total = sum(math.exp(value) for value in values)
    assert [token for token, _ in distribution.top] == [0, 3, 2, 1]
    for token, logprob in distribution.top:
        assert logprob == pytest.approx(math.log(math.exp(values[token]) / total), abs=1e-5)
    assert distribution.logprob_of(2) == dict(distribution.top)[2]


def test_among_equals_the_lowest_token_is_first() -> None:
    assert [token for token, _ in Distribution(logits(1, 2, 2, 2, 1), n_top=2).top] == [1, 2]


def test_no_alternatives_where_none_are_asked_for_and_never_more_than_there_are() -> None:
    assert Distribution(logits(1, 2), n_top=0).top == []
    assert len(Distribution(logits(1, 2), n_top=20).top) == 2


def test_what_is_impossible_has_a_finite_number() -> None:
    distribution = Distribution(logits(1, -math.inf, -1e30), n_top=3)
    assert [logprob for _, logprob in distribution.top] == [0.0, LEAST, LEAST]


def aligner(*tokens: tuple[bytes, str]) -> TokenAligner:
    made = TokenAligner()
    for piece, characters in tokens:
        made.add(TokenLogprob(piece, -1.0), characters)
    return made


def pieces(logprobs: Sequence[TokenLogprob]) -> list[bytes]:
    return [logprob.token for logprob in logprobs]


def test_tokens_ride_on_the_text_they_make() -> None:
    tokens = aligner((b"one", "one"), (b" two", " two"), (b" three", " three"))
    first = tokens.take("one two")
    assert (first.text, pieces(first.logprobs)) == ("one two", [b"one", b" two"])
    second = tokens.take(" three")
    assert (second.text, pieces(second.logprobs)) == (" three", [b" three"])


def test_text_waits_for_the_rest_of_its_token() -> None:
    tokens = aligner((b"lo w", "lo w"))
    assert tokens.take("lo") == ("", [])
    whole = tokens.take(" w")
    assert (whole.text, pieces(whole.logprobs)) == ("lo w", [b"lo w"])


def test_a_token_that_is_cut_at_the_end_is_cut_to_what_is_seen() -> None:
    tokens = aligner((b"a", "a"), (b"b<", "b<"), (b"|x", "|x"))
    assert tokens.take("ab").text == "a"
    end = tokens.finish()
    assert (end.text, pieces(end.logprobs)) == ("b", [b"b"])


def test_bytes_of_one_character_go_together() -> None:
    tokens = aligner((b"x\xf0\x9f", "x"), (b"\x99", ""), (b"\x82!", "🙂!"))
    first = tokens.take("x")
    assert (first.text, pieces(first.logprobs)) == ("x", [b"x\xf0\x9f"])
    rest = tokens.take("🙂!")
    assert b"".join(pieces(first.logprobs + rest.logprobs)).decode() == "x🙂!"


def test_marks_and_reasoning_are_left_out() -> None:
    tokens = aligner((b"<think>", "<think>"), (b"hm", "hm"), (b"</think>\nY", "</think>\nY"), (b"es", "es"))
    assert tokens.drop("hm") == ("", [])
    answer = tokens.take("Yes")
    assert (answer.text, pieces(answer.logprobs)) == ("Yes", [b"Y", b"es"])


def test_a_call_takes_its_tokens_away() -> None:
    tokens = aligner((b"Hi", "Hi"), (b"[x(", "[x("), (b")] then", ")] then"))
    assert tokens.take("Hi").text == "Hi"
    assert tokens.drop_all_but_last() == ("", [])
    after = tokens.take(" then")
    assert pieces(after.logprobs) == [b" then"]
