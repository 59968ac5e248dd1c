"""The chat engine with real models: SmolLM2 for sense, a tiny random llama for speed."""

from collections.abc import Iterator
from typing import Any

import pytest

from tasks.contracts import FinishReason, Sampling
from tasks.engines import load_engines
from tasks.engines.base import ChatEngine, InvalidRequest, ModelLoadError
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tasks.settings import Settings, load_settings
from tests.engine_contract import ChatEngineContract, RecordingSink, chat_request, run
from tests.support import wait_until
from tests.support_models import minilm_path, smollm2_path, tiny_llama_path, tiny_qwen3_path

COUNT = "Count from 1 to 40 in digits, separated by single spaces."


def settings(path: Any, **changes: Any) -> Settings:
    """One thread: on a busy machine two wait for each other more than they compute."""
    values = {"gguf_path": str(path), "embedding_enabled": False, "n_gpu_layers": 0, "n_threads": 1, "n_ctx": 1024}
    return load_settings(**{**values, **changes})


def load_chat(path: Any, **changes: Any) -> LlamaChatEngine:
    engine = load_engines(settings(path, **changes), lambda line: None).chat
    assert isinstance(engine, LlamaChatEngine)
    return engine


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LlamaChatEngine]:
    engine = load_chat(smollm2_path())
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tiny() -> Iterator[LlamaChatEngine]:
    engine = load_chat(tiny_llama_path(), parallel=3)
    yield engine
    engine.close()


class TestSmolLM2(ChatEngineContract):
    @pytest.fixture
    def engine(self, smollm2: LlamaChatEngine) -> LlamaChatEngine:
        return smollm2


class TestTinyLlamaWithThreeSlots(ChatEngineContract):
    @pytest.fixture
    def engine(self, tiny: LlamaChatEngine) -> LlamaChatEngine:
        return tiny


def test_it_answers_sensibly_and_ends_by_itself(smollm2: LlamaChatEngine) -> None:
    sink = run(smollm2, chat_request("What is the capital of France? Answer in one word.", max_tokens=40))
    assert "Paris" in sink.text
    assert sink.reason is FinishReason.STOP
    assert "<|" not in sink.text
    assert sink.text == sink.text.strip()


def test_cold_and_warm_answers_are_the_same_to_the_last_bit(smollm2: LlamaChatEngine) -> None:
    long = "The river runs through the valley and past the mill. " * 9 + COUNT
    run(smollm2, chat_request("Something else entirely.", max_tokens=1))
    cold = run(smollm2, chat_request(long, max_tokens=24))
    warm = run(smollm2, chat_request(long, max_tokens=24))
    assert warm.usage.cached_tokens == warm.usage.prompt_tokens - 2 > cold.usage.cached_tokens
    extended = run(smollm2, chat_request(long, cold.text, "Go on.", max_tokens=4))
    again = run(smollm2, chat_request(long, max_tokens=24))
    assert extended.usage.cached_tokens >= cold.usage.prompt_tokens - 2
    assert warm.text == cold.text == again.text
    assert len({sink.usage.prompt_tokens for sink in (cold, warm, again)}) == 1
    assert warm.timings.prompt_n == 2


def test_a_conversation_that_goes_on_keeps_what_was_decoded(smollm2: LlamaChatEngine) -> None:
    first = run(smollm2, chat_request("Name a colour.", max_tokens=6))
    second = run(smollm2, chat_request("Name a colour.", first.text, "Another one.", max_tokens=2))
    assert second.usage.cached_tokens >= first.usage.prompt_tokens


def test_parallel_answers_are_those_given_alone(tiny: LlamaChatEngine) -> None:
    requests = [
        chat_request(f"Tell story number {number} " + "long " * 30 * number, max_tokens=40) for number in range(6)
    ]
    alone = [run(tiny, request).text for request in requests]
    sinks = [RecordingSink() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        tiny.submit(request, sink)
    assert [sink.wait().text for sink in sinks] == alone


def test_slots_are_filled_at_the_same_time(tiny: LlamaChatEngine) -> None:
    sinks = [RecordingSink() for _ in range(3)]
    tickets = [tiny.submit(chat_request(f"{n}", max_tokens=400, stop=[]), sink) for n, sink in enumerate(sinks)]
    wait_until(lambda: all(sink.progressed for sink in sinks), "all three run")
    assert tiny.n_slots == 3
    for ticket in tickets:
        ticket.cancel()


def test_cancel_within_a_long_prompt_keeps_what_was_decoded(tiny: LlamaChatEngine) -> None:
    text = "word " * 400
    sink = RecordingSink(cancel_at="progress")
    sink.submit(tiny, chat_request(text, max_tokens=4))
    sink.wait()
    assert sink.was_cancelled
    assert sink.usage.completion_tokens == 0
    again = run(tiny, chat_request(text, max_tokens=4))
    assert again.usage.cached_tokens >= sink.progressed[-1][0] - 1 > 0


def test_a_cancel_from_another_thread_within_a_chunk_is_prompt_and_harmless(smollm2: LlamaChatEngine) -> None:
    expected = run(smollm2, chat_request(COUNT, max_tokens=8)).text
    text = "The quick brown fox jumps over the lazy dog. " * 80
    for _ in range(3):
        sink = RecordingSink()
        smollm2.submit(chat_request(text, max_tokens=4), sink).cancel()
        assert sink.wait().was_cancelled
    assert run(smollm2, chat_request(COUNT, max_tokens=8)).text == expected


def test_a_seed_gives_the_same_text_again_and_none_another(smollm2: LlamaChatEngine) -> None:
    def text(seed: int | None) -> str:
        sampling = Sampling(temperature=0.9, seed=seed)
        return run(
            smollm2, chat_request("Invent a name for a cat and explain it.", sampling=sampling, max_tokens=16)
        ).text

    assert text(123) == text(123)
    run(smollm2, chat_request("Another topic.", max_tokens=2))
    assert text(123) == text(123)
    assert len({text(None) for _ in range(4)}) > 1
    assert text(123) != text(124)


def test_a_repeat_penalty_changes_a_repetitive_answer(smollm2: LlamaChatEngine) -> None:
    plain = run(smollm2, chat_request("Say ha ten times.", max_tokens=24)).text
    penalty = Sampling(temperature=0, repeat_penalty=1.8, frequency_penalty=0.5, repeat_last_n=-1)
    assert run(smollm2, chat_request("Say ha ten times.", max_tokens=24, sampling=penalty)).text != plain


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_no_half_character_leaves(smollm2: LlamaChatEngine, max_tokens: int) -> None:
    sink = run(smollm2, chat_request("Repeat exactly, nothing else: 🎉 漢字 𠮷 ß ạ", max_tokens=max_tokens))
    assert "\ufffd" not in sink.text
    assert sink.usage.completion_tokens == max_tokens or sink.reason is FinishReason.STOP


def test_every_cut_of_a_stop_text_hides_it(smollm2: LlamaChatEngine) -> None:
    whole = run(smollm2, chat_request(COUNT, max_tokens=30)).text
    for start, end in ((3, 9), (8, 12), (1, 20)):
        stops = [whole[end + 2 : end + 5], whole[start:end], "zzz"]
        sink = run(smollm2, chat_request(COUNT, max_tokens=30, stop=stops))
        assert sink.text == whole[: min(whole.index(stop) for stop in stops if stop in whole)]
        assert sink.reason is FinishReason.STOP


def test_a_stop_that_only_begins_at_the_end_is_released(smollm2: LlamaChatEngine) -> None:
    request: dict[str, Any] = {"max_tokens": 40}
    whole = run(smollm2, chat_request("Say: the end is near", **request))
    held = run(smollm2, chat_request("Say: the end is near", stop=[whole.text[-4:] + "zzzzqqqq"], **request))
    assert (held.text, held.reason) == (whole.text, whole.reason)


def test_max_tokens_is_lowered_to_the_setting_and_to_the_window() -> None:
    engine = load_chat(tiny_llama_path(), n_ctx=256, max_model_length=20)
    try:
        assert run(engine, chat_request("a b c", max_tokens=10**9)).usage.completion_tokens <= 20
        assert run(engine, chat_request("a b c")).usage.completion_tokens <= 20
        nearly_full = run(engine, chat_request(messages=None, prompts=["a" * 250], max_tokens=100))
        assert nearly_full.usage.prompt_tokens + nearly_full.usage.completion_tokens <= 256
        assert nearly_full.reason is FinishReason.LENGTH
    finally:
        engine.close()


@pytest.mark.parametrize("prompt", ["", " ", "\0", "\ud83d", "a\ud83d\ude00"])
def test_odd_prompts_are_answered(smollm2: LlamaChatEngine, prompt: str) -> None:
    assert run(smollm2, chat_request(messages=None, prompts=[prompt], max_tokens=2)).error is None
    assert run(smollm2, chat_request("x" + prompt, max_tokens=2)).error is None


def test_a_text_completion_goes_on_where_the_prompt_ends(smollm2: LlamaChatEngine) -> None:
    assert run(smollm2, chat_request(messages=None, prompts=["Once upon a"], max_tokens=3)).text.startswith(" time")


def test_an_unusable_max_tokens_is_the_clients_fault(tiny: LlamaChatEngine) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tiny.submit(chat_request("x", max_tokens=0), RecordingSink())
    assert caught.value.param == "max_tokens"


def test_a_closed_engine_cancels_what_it_has_and_takes_nothing_more() -> None:
    engine = load_chat(tiny_llama_path())
    sinks = [RecordingSink() for _ in range(3)]
    for sink in sinks:
        engine.submit(chat_request("Never stop.", max_tokens=900), sink)
    engine.close()
    engine.close()
    assert all(sink.has_ended and sink.n_ends == 1 for sink in sinks)
    with pytest.raises(Exception, match="shutting down"):
        engine.submit(chat_request("x"), RecordingSink())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gguf_path": __file__}, "not a GGUF"),
        ({"chat_template_path": "/none/there.jinja"}, "LIS_CHAT_TEMPLATE_PATH"),
        ({"cache_type_v": "q8_0"}, "LIS_CACHE_TYPE_V"),
        ({"gguf_path": str(minilm_path())}, "encoder"),
        ({"gguf_path": str(tiny_qwen3_path())}, "no chat template: set LIS_CHAT_TEMPLATE_PATH"),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words) as caught:
        load_chat(tiny_llama_path(), **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("changes", [{"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, {"flash_attn": "off"}])
def test_other_caches_answer_too(changes: dict[str, Any]) -> None:
    engine: ChatEngine = load_chat(smollm2_path(), **changes)
    try:
        assert (
            "Paris"
            in run(engine, chat_request("What is the capital of France? Answer in one word.", max_tokens=12)).text
        )
    finally:
        engine.close()
