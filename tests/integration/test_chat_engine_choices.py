"""Several choices, several prompts, filling in: one request in one slot."""

from collections.abc import Iterator
from typing import Any

import pytest

from tasks.contracts import FinishReason, Sampling
from tasks.engines.base import InvalidRequest
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tests.engine_contract import ENDLESS, RecordingSink, chat_request, run
from tests.integration.test_chat_engine import load_chat
from tests.support_models import smollm2_path, tiny_llama_path, tiny_llama_with_marks_path
from tests.tiny_gguf import FILL_IN_MARKS


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LlamaChatEngine]:
    engine = load_chat(smollm2_path(), n_ctx=512)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tiny() -> Iterator[LlamaChatEngine]:
    engine = load_chat(tiny_llama_path(), parallel=2)
    yield engine
    engine.close()


def texts(sink: RecordingSink) -> list[str]:
    assert sink.error is None
    return ["".join(sink.texts.get(choice, [])) for choice in range(max(sink.texts) + 1)]


@pytest.mark.parametrize("extra", [{}, {"repeat_penalty": 1.3}, {"dry_multiplier": 0.8}, {"mirostat": 2}])
def test_choices_are_the_answers_to_single_requests_with_seeds_that_count_up(
    smollm2: LlamaChatEngine, extra: dict[str, Any]
) -> None:
    def asked(seed: int, n: int) -> RecordingSink:
        sampling = Sampling(temperature=1.0, seed=seed, **extra)
        return run(smollm2, chat_request("Invent a name for a cat.", max_tokens=12, n=n, sampling=sampling))

    together = asked(41, 3)
    alone = [asked(seed, 1) for seed in (41, 42, 43)]
    assert texts(together) == [sink.text for sink in alone]
    assert len(set(texts(together))) == 3
    assert together.usage.completion_tokens == sum(sink.usage.completion_tokens for sink in alone)
    assert together.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert [*together.reasons.values(), together.reason] == [sink.reason for sink in alone]


def test_choices_without_a_seed_differ(smollm2: LlamaChatEngine) -> None:
    request = chat_request("Invent a story.", max_tokens=12, n=4, sampling=Sampling(temperature=1.2))
    assert len(set(texts(run(smollm2, request)))) > 1


def test_a_prompt_is_prefilled_once_for_all_its_choices(smollm2: LlamaChatEngine) -> None:
    question = "The river runs through the valley. " * 12
    sink = run(smollm2, chat_request(question, max_tokens=3, n=4))
    assert sink.progressed[-1] == (sink.usage.prompt_tokens, sink.usage.prompt_tokens)
    assert [done for done, _ in sink.progressed] == sorted({done for done, _ in sink.progressed})
    assert sink.timings.prompt_n == sink.usage.prompt_tokens - sink.usage.cached_tokens > 50
    assert sink.timings.predicted_n == 12
    assert len(set(texts(sink))) == 1


def test_several_prompts_are_answered_as_each_alone(tiny: LlamaChatEngine) -> None:
    prompts = ["one two one", "hello world, you", "cat", ""]
    sampling = Sampling(temperature=1.0, seed=7)

    def asked(prompts: list[str], n: int = 2) -> RecordingSink:
        return run(tiny, chat_request(messages=None, prompts=prompts, max_tokens=9, n=n, sampling=sampling))

    together = asked(prompts)
    alone = [asked([prompt]) for prompt in prompts]
    assert texts(together) == [text for sink in alone for text in texts(sink)]
    assert together.usage.prompt_tokens == sum(sink.usage.prompt_tokens for sink in alone)
    assert together.progressed[-1] == (together.usage.prompt_tokens,) * 2
    assert sorted(together.reasons) == list(range(7))


def test_the_kept_tokens_of_each_prompt_are_counted_once(tiny: LlamaChatEngine) -> None:
    prompt = "the cat and the dog and you " * 4
    request = chat_request(messages=None, prompts=[prompt, prompt], max_tokens=2, n=2)
    run(tiny, request)
    sink = run(tiny, request)
    assert sink.usage.cached_tokens == sink.usage.prompt_tokens - 4


def test_each_choice_has_its_own_max_tokens_and_stop(tiny: LlamaChatEngine) -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    whole = texts(run(tiny, chat_request(ENDLESS, max_tokens=40, n=2, sampling=sampling)))
    stop = whole[1][20:23]
    sink = run(tiny, chat_request(ENDLESS, max_tokens=40, n=2, sampling=sampling, stop=[stop]))
    assert texts(sink)[1] == whole[1][: whole[1].index(stop)]
    assert sink.reason is FinishReason.STOP


def test_other_requests_run_beside_a_choice(tiny: LlamaChatEngine) -> None:
    alone = run(tiny, chat_request("Hello", max_tokens=20)).text
    many = RecordingSink()
    ticket = many.submit(tiny, chat_request(ENDLESS, max_tokens=200, n=50))
    assert run(tiny, chat_request("Hello", max_tokens=20)).text == alone
    assert not many.has_ended
    ticket.cancel()
    assert many.wait().was_cancelled


def test_a_cancel_in_the_second_choice_frees_the_slot(tiny: LlamaChatEngine) -> None:
    class CancelsInSecond(RecordingSink):
        def delta(self, text: str, tokens: int, choice: int = 0, *rest: Any, **named: Any) -> None:
            super().delta(text, tokens, choice, *rest, **named)
            if choice == 1:
                self._ticket.result().cancel()

    sink = CancelsInSecond()
    sink.submit(tiny, chat_request(ENDLESS, max_tokens=30, n=8))
    sink.wait()
    assert sink.was_cancelled
    assert list(sink.reasons) == [0]
    assert 30 < sink.usage.completion_tokens < 60
    assert not any(slot.busy for slot in tiny._decoder._slots)
    assert run(tiny, chat_request(ENDLESS, max_tokens=5)).usage.completion_tokens == 5


def test_one_prompt_too_long_is_named_before_anything_is_decoded(tiny: LlamaChatEngine) -> None:
    sink = RecordingSink()
    with pytest.raises(Exception, match="window") as caught:
        tiny.submit(chat_request(messages=None, prompts=["a", "word " * 2000, "b"]), sink)
    assert getattr(caught.value, "param", None) == "prompt[1]"
    assert not sink.progressed


# -- filling in the middle -------------------------------------------------------------------------


def test_the_prompt_of_filling_in_has_llama_cpps_order() -> None:
    engine = load_chat(tiny_llama_with_marks_path())
    try:
        request = chat_request(messages=None, prompts=["def f("], suffix="return 1", max_tokens=8)
        vocab = engine._vocab
        prefix, suffix, middle = (vocab.single_token(mark) for mark in FILL_IN_MARKS)
        ends = vocab.tokenize("def f("), vocab.tokenize("return 1")
        assert engine.tokenize(request) == [vocab.bos, prefix, *ends[0], suffix, *ends[1], middle]
        assert run(engine, request).error is None
    finally:
        engine.close()


def test_a_suffix_is_refused_where_the_model_has_no_tokens_for_it(smollm2: LlamaChatEngine) -> None:
    with pytest.raises(InvalidRequest, match="fill-in-the-middle") as caught:
        smollm2.submit(chat_request(messages=None, prompts=["a"], suffix="b"), RecordingSink())
    assert caught.value.param == "suffix"
