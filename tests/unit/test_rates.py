"""What a worker measures from the ends of its requests."""

import pytest

from tasks.contracts import EmbedRequest, FinishReason, GenerateRequest, Rates, Timings, Usage, Work, work_of
from tasks.ended import LOST, Ended
from tasks.rates import MAX_LENGTHS, RateMeter

CHAT = Work("chat", 400)


def finished(tokens: int = 50, reason: FinishReason = FinishReason.STOP, prompt: int = 100, fresh: int = 100) -> Ended:
    timings = Timings(prompt_n=fresh, prompt_ms=fresh * 2.0, predicted_n=tokens, predicted_ms=tokens * 20.0)
    return Ended("finished", reason, Usage(prompt_tokens=prompt, completion_tokens=tokens), timings)


def measured(*ends: Ended, work: Work = CHAT, held_s: float = 1.25) -> Rates:
    meter = RateMeter()
    for ended in ends:
        meter.add(work, ended, held_s)
    return meter.rates()


def test_rates_of_a_chat() -> None:
    rates = measured(finished())
    assert rates.chats == 1
    assert rates.prefill_tokens_per_s == pytest.approx(500)
    assert rates.decode_tokens_per_s == pytest.approx(50)
    assert rates.chars_per_token == pytest.approx(4)
    assert rates.fresh == 1.0
    assert rates.overhead_s == pytest.approx(1.25 - 0.2 - 1.0)


def test_cached_prompt_tokens_are_no_prefill() -> None:
    rates = measured(finished(prompt=100, fresh=25))
    assert rates.prefill_tokens_per_s == pytest.approx(500)
    assert rates.fresh == pytest.approx(0.25)
    assert rates.chars_per_token == pytest.approx(4)


def test_answers_that_were_cut_are_kept_apart() -> None:
    ends = [finished(30), finished(64, FinishReason.LENGTH), Ended("cancelled", usage=Usage(completion_tokens=7))]
    rates = measured(*ends)
    assert (rates.lengths, rates.cut_lengths) == ([30], [64, 7])
    assert rates.chats == 2


def test_of_several_choices_the_mean_length() -> None:
    assert measured(finished(60), work=Work("chat", 400, choices=3)).lengths == [20]


@pytest.mark.parametrize("outcome", ["failed", LOST])
def test_a_request_that_failed_tells_nothing(outcome: str) -> None:
    assert measured(Ended(outcome)) == Rates()


def test_newer_requests_count_more() -> None:
    slow = Ended("finished", FinishReason.STOP, Usage(100, 50), Timings(100, 200.0, 50, 5000.0))
    rates = measured(*[finished()] * 50, *[slow] * 100)
    assert rates.decode_tokens_per_s == pytest.approx(10, rel=0.1)


def test_the_sample_of_lengths_is_bounded_to_the_last_ones() -> None:
    rates = measured(*[finished(tokens) for tokens in range(1, 200)])
    assert rates.lengths == list(range(200 - MAX_LENGTHS, 200))


def test_rates_of_embeddings() -> None:
    ended = Ended("finished", FinishReason.STOP, Usage(prompt_tokens=50), Timings(50, 100.0, 0, 0.0))
    rates = measured(ended, work=Work("embedding", 200), held_s=0.11)
    assert (rates.embeddings, rates.chats, rates.lengths) == (1, 0, [])
    assert rates.embedding_chars_per_s == pytest.approx(2000)
    assert rates.embedding_tokens_per_s == pytest.approx(500)
    assert rates.embedding_overhead_s == pytest.approx(0.01)


def test_nothing_divides_by_zero() -> None:
    flat_out = Ended("finished", FinishReason.STOP, Usage(), Timings())
    assert measured(flat_out, held_s=0.0).chats == 1
    assert measured(flat_out, work=Work("embedding", 0), held_s=0.0).embeddings == 1


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("request_", "work"),
    [
        (EmbedRequest(id="e", model="m", reply_to="a", texts=["ab", "cde"], share=3), Work("embedding", 5, share=3)),
        (
            GenerateRequest(id="c", model="m", reply_to="a", messages=[{"role": "user", "content": "hello"}]),
            Work("chat", 5),
        ),
        (
            GenerateRequest(id="c", model="m", reply_to="a", prompts=["ab", "c"], suffix="xy", n=2, max_tokens=7),
            Work("chat", 5, max_tokens=7, choices=4),
        ),
        (
            GenerateRequest(
                id="c",
                model="m",
                reply_to="a",
                messages=[{"role": "assistant", "content": None}],
                tools=TOOLS,
                caller="k",
            ),
            Work("chat", 45, caller="k"),
        ),
    ],
    ids=["embedding", "chat", "prompts", "tools"],
)
def test_the_size_of_a_request(request_: GenerateRequest | EmbedRequest, work: Work) -> None:
    assert work_of(request_) == work
