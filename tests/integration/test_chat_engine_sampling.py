"""What the sampling settings do to real answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tasks.contracts import FinishReason, Sampling
from tasks.engines.base import InvalidRequest
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tests.engine_contract import ENDLESS, GREEDY, RecordingSink, chat_request, run
from tests.integration.test_chat_engine import load_chat
from tests.support_models import smollm2_path, tiny_llama_path

QUESTION = "What is the capital of France? Answer in one word."


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LlamaChatEngine]:
    engine = load_chat(smollm2_path(), n_ctx=512)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tiny() -> Iterator[LlamaChatEngine]:
    engine = load_chat(tiny_llama_path())
    yield engine
    engine.close()


def text(engine: LlamaChatEngine, question: str = ENDLESS, max_tokens: int = 24, **sampling: Any) -> str:
    sink = run(engine, chat_request(question, max_tokens=max_tokens, sampling=Sampling(**sampling)))
    assert sink.error is None
    return sink.text


OFF: dict[str, Any] = {"temperature": 1.2, "seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    "change",
    [
        {"typical_p": 0.2},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"dry_multiplier": 50.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
        {"mirostat": 1},
        {"mirostat": 2, "mirostat_tau": 1.0},
        {"top_k": 1},
        {"top_p": 0.1},
        {"min_p": 0.9},
        {"presence_penalty": 1.9},
    ],
    ids=lambda change: next(iter(change)) + str(next(iter(change.values()))),
)
def test_each_sampler_changes_the_answer_and_a_seed_repeats_it(
    smollm2: LlamaChatEngine, change: dict[str, Any]
) -> None:
    question = "Say one, two, one, two, one, two, and go on."
    plain = text(smollm2, question, **OFF)
    changed = text(smollm2, question, **{**OFF, **change})
    assert changed != plain
    assert changed == text(smollm2, question, **{**OFF, **change})


@pytest.mark.parametrize("mirostat", [0, 1, 2])
@pytest.mark.parametrize("typical_p", [0.5, 1.0])
def test_samplers_work_while_the_end_is_impossible(tiny: LlamaChatEngine, mirostat: int, typical_p: float) -> None:
    sampling = Sampling(**OFF, mirostat=mirostat, typical_p=typical_p, ignore_eos=True)
    sink = run(tiny, chat_request(QUESTION, max_tokens=300, sampling=sampling))
    assert (sink.error, sink.usage.completion_tokens) == (None, 300)


def test_the_dry_penalty_ends_a_repetition(smollm2: LlamaChatEngine) -> None:
    question = "Repeat: ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha"
    repeated = text(smollm2, question, temperature=0, max_tokens=40)
    broken = text(smollm2, question, temperature=0, max_tokens=40, dry_multiplier=5.0)
    assert repeated.lower().count("ha ha ha") > broken.lower().count("ha ha ha")


def test_a_bias_of_minus_100_forbids_a_token_and_one_of_100_forces_it(smollm2: LlamaChatEngine) -> None:
    vocab = smollm2._vocab
    first = vocab.tokenize(text(smollm2, QUESTION, max_tokens=1, temperature=0))[0]
    assert vocab.tokenize(text(smollm2, QUESTION, max_tokens=1, temperature=0, logit_bias=[(first, -100.0)])) != [first]
    cat = vocab.tokenize("cat")
    assert len(cat) == 1
    assert text(smollm2, QUESTION, max_tokens=5, seed=1, logit_bias=[(cat[0], 100.0)]) == "cat" * 5


def test_the_bias_of_a_text_is_that_of_each_of_its_tokens(smollm2: LlamaChatEngine) -> None:
    parts = [smollm2._vocab.piece(token).decode() for token in smollm2._vocab.tokenize("zigzag parade")]
    assert len(parts) > 1
    answer = text(smollm2, max_tokens=20, seed=3, logit_bias=[("zigzag parade", 100.0)])
    for part in sorted(parts, key=len, reverse=True):
        answer = answer.replace(part, "")
    assert answer == ""


@pytest.mark.parametrize("token", [-1, 10**6, 2**40])
def test_a_bias_for_no_token_of_the_model_is_the_clients_fault(smollm2: LlamaChatEngine, token: int) -> None:
    with pytest.raises(InvalidRequest, match="0 to 49151") as caught:
        smollm2.submit(chat_request(sampling=Sampling(logit_bias=[(token, 1.0)])), RecordingSink())
    assert caught.value.param == "logit_bias"


def test_no_end_before_min_tokens(smollm2: LlamaChatEngine) -> None:
    assert run(smollm2, chat_request(QUESTION, max_tokens=60)).usage.completion_tokens < 12
    sink = run(smollm2, chat_request(QUESTION, max_tokens=60, sampling=Sampling(temperature=0, min_tokens=12)))
    assert sink.usage.completion_tokens > 12
    longer = run(smollm2, chat_request(QUESTION, max_tokens=20, sampling=Sampling(seed=1, min_tokens=100)))
    assert (longer.usage.completion_tokens, longer.reason) == (20, FinishReason.LENGTH)


def test_ignore_eos_goes_on_to_max_tokens(smollm2: LlamaChatEngine) -> None:
    sink = run(smollm2, chat_request(QUESTION, max_tokens=50, sampling=Sampling(temperature=0, ignore_eos=True)))
    assert (sink.usage.completion_tokens, sink.reason) == (50, FinishReason.LENGTH)


def test_min_tokens_and_greedy_choose_as_ever_where_no_end_is_near(smollm2: LlamaChatEngine) -> None:
    plain = run(smollm2, chat_request(ENDLESS, max_tokens=20, sampling=GREEDY)).text
    assert text(smollm2, ENDLESS, max_tokens=20, temperature=0, min_tokens=20) == plain
