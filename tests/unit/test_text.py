"""Assembly of answers from token bytes."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from tasks.engines.llamacpp.text import AnswerText

few_letters = st.text(alphabet="abé🎉", max_size=30)


def assemble(pieces: list[bytes], stops: list[str]) -> tuple[list[str], bool]:
    """What leaves after each piece and at the end, and whether a stop text ended the answer."""
    answer = AnswerText(stops)
    sent = []
    for piece in pieces:
        step = answer.feed(piece)
        sent.append(step.text)
        if step.stopped:
            return sent, True
    step = answer.finish()
    return [*sent, step.text], step.stopped


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(
    text=few_letters,
    stops=st.lists(st.text(alphabet="abé🎉", max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 200)),
)
@example(text="abab", stops=["abb", "b"], cuts=[1, 2, 3])
@example(text="aab", stops=["aabb", "ab"], cuts=[1, 2, 3])
@example(text="aé", stops=["é", "aéa"], cuts=[])
def test_any_split_gives_the_text_up_to_the_earliest_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    found = [text.index(stop) for stop in stops if stop and stop in text]
    sent, stopped = assemble(split(text.encode(), cuts), stops)
    assert "".join(sent) == text[: min(found, default=len(text))]
    assert stopped == bool(found)


@given(text=few_letters, stop=st.text(alphabet="ab", min_size=1, max_size=4), cuts=st.lists(st.integers(0, 200)))
def test_nothing_leaves_that_may_still_become_a_stop(text: str, stop: str, cuts: list[int]) -> None:
    answer = AnswerText([stop])
    fed, sent = b"", ""
    for piece in split(text.encode(), cuts):
        fed += piece
        step = answer.feed(piece)
        sent += step.text
        if step.stopped:
            break
        so_far = fed.decode(errors="ignore")
        open_from = [start for start in range(len(so_far)) if stop.startswith(so_far[start:])]
        assert len(sent) <= min(open_from, default=len(so_far))


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 200)))
def test_any_bytes_give_valid_text_and_lose_only_an_unfinished_end(data: bytes, cuts: list[int]) -> None:
    sent, _ = assemble(split(data, cuts), [])
    "".join(sent).encode("utf-8")
    whole = data.decode("utf-8", errors="replace")
    joined = "".join(sent)
    assert whole.startswith(joined)
    assert len(whole) - len(joined) <= 1


def test_a_character_over_several_tokens_leaves_whole() -> None:
    sent, _ = assemble([byte.to_bytes() for byte in "a👩‍👧é".encode()], [])
    assert "".join(sent) == "a👩‍👧é"
    assert all("\ufffd" not in text for text in sent)


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    assert assemble(["ok🎉".encode()[:-1]], []) == (["ok", ""], False)


def test_the_order_of_stops_does_not_matter() -> None:
    assert assemble([b"one two three"], ["three", "two"]) == (["one "], True)


def test_a_held_beginning_of_a_stop_is_released_at_the_end() -> None:
    assert assemble([b"the end"], ["end of it"]) == (["the ", "end"], False)


def test_an_earlier_stop_that_is_still_undecided_is_waited_for() -> None:
    assert "".join(assemble([b"xab", b"c", b"d"], ["abcd", "b"])[0]) == "x"
    assert "".join(assemble([b"xab", b"c", b"e"], ["abcd", "b"])[0]) == "xa"


def test_text_flows_at_once_when_no_stop_can_begin() -> None:
    assert AnswerText(["zzz"]).feed(b"hello").text == "hello"


def test_empty_stops_are_ignored() -> None:
    assert assemble([b"hello"], ["", ""]) == (["hello", ""], False)
