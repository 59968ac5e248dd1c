"""Log probabilities of real answers."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.contracts import FinishReason, Sampling, TokenLogprob
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tests.engine_contract import GREEDY, RecordingSink, chat_request, run
from tests.integration.test_chat_engine import COUNT, load_chat
from tests.support_models import smollm2_path, tiny_llama_path


@pytest.fixture(scope="module", params=["smollm2", "tiny"])
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaChatEngine]:
    engine = load_chat(smollm2_path() if request.param == "smollm2" else tiny_llama_path(), n_ctx=512)
    yield engine
    engine.close()


def joined(logprobs: list[TokenLogprob]) -> str:
    """A random model makes bytes, too, that are no text."""
    return b"".join(logprob.token for logprob in logprobs).decode(errors="replace")


def asked(engine: LlamaChatEngine, question: str, logprobs: int = 3, **fields: Any) -> RecordingSink:
    sink = run(engine, chat_request(question, logprobs=logprobs, **fields))
    assert sink.error is None
    return sink


def test_the_greedy_choice_is_the_first_alternative(engine: LlamaChatEngine) -> None:
    sink = asked(engine, COUNT, max_tokens=20)
    logprobs = sink.logprobs[0]
    n_text = sink.usage.completion_tokens - (sink.reason is FinishReason.STOP)
    is_cut = "\ufffd" in sink.text  # then half a character may have been left at the end
    assert n_text - 5 * is_cut <= len(logprobs) <= n_text
    for token in logprobs[1:]:  # of the first token a blank may have been cut
        assert token.top[0] == (token.token, token.logprob)
        assert len(token.top) == 3
        assert [logprob for _, logprob in token.top] == sorted((logprob for _, logprob in token.top), reverse=True)


def test_they_change_nothing_of_the_answer(engine: LlamaChatEngine) -> None:
    sampling = Sampling(temperature=0.9, seed=4)
    plain = run(engine, chat_request(COUNT, max_tokens=20, sampling=sampling))
    assert asked(engine, COUNT, max_tokens=20, sampling=sampling).text == plain.text


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.5, seed=9), Sampling(seed=2, min_tokens=30)])
@pytest.mark.parametrize("question", [COUNT, "Repeat exactly, nothing else: 🎉 漢字 𠮷 ß ạ"])
def test_their_tokens_are_the_text(engine: LlamaChatEngine, question: str, sampling: Sampling) -> None:
    sink = asked(engine, question, max_tokens=40, sampling=sampling, logprobs=0)
    assert joined(sink.logprobs[0]) == sink.text
    assert all(token.top == [] for token in sink.logprobs[0])


def test_a_stop_text_takes_its_tokens_away(engine: LlamaChatEngine) -> None:
    whole = asked(engine, COUNT, max_tokens=30).text
    for start, end in ((3, 9), (8, 12), (5, 6)):
        stop = whole[start:end]
        sink = asked(engine, COUNT, max_tokens=30, stop=[stop, "zzz", whole[end : end + 2] + "qq"])
        assert sink.text == whole[: whole.index(stop)]
        assert joined(sink.logprobs.get(0, [])) == sink.text


def test_the_numbers_are_those_before_bias_penalties_and_temperature(engine: LlamaChatEngine) -> None:
    plain = asked(engine, COUNT, max_tokens=1, logprobs=20).logprobs[0][0]
    token = engine._vocab.tokenize("x")[-1]
    sampling = Sampling(temperature=2.0, seed=1, logit_bias=[(token, 100.0)], repeat_penalty=1.5)
    forced = asked(engine, COUNT, max_tokens=1, logprobs=20, sampling=sampling).logprobs[0][0]
    assert forced.token.strip() == b"x"
    assert forced.top == plain.top
    assert forced.logprob < plain.logprob
    assert sum(math.exp(logprob) for _, logprob in plain.top) <= 1.0001


def test_every_choice_has_its_own(engine: LlamaChatEngine) -> None:
    sink = asked(engine, COUNT, max_tokens=8, n=3, sampling=Sampling(seed=1))
    assert {choice: joined(logprobs) for choice, logprobs in sink.logprobs.items()} == {
        choice: "".join(texts) for choice, texts in sink.texts.items()
    }
