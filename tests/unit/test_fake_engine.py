"""The fake engine keeps the contracts of the real ones, and its own promises to the tests that use it."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tasks.contracts import FinishReason
from tasks.engines import load_engines
from tasks.engines.base import Cancelled, DecodeFailed, EmbeddingEngine
from tasks.engines.fake import FakeChatEngine, FakeEmbeddingEngine
from tasks.engines.fake_text import Answer, answer, count_tokens
from tasks.settings import load_settings
from tests.embedding_contract import EmbeddingEngineContract
from tests.engine_contract import ENDLESS, ChatEngineContract, RecordingSink, chat_request, run
from tests.support import wait_until

LONG_PROMPT = "word " * 1000


@pytest.fixture
def load() -> Iterator[Callable[..., FakeChatEngine]]:
    """A fake chat engine with these settings; closed at the end."""
    engines: list[FakeChatEngine] = []

    def load_and_remember(**settings: Any) -> FakeChatEngine:
        engines.append(FakeChatEngine(load_settings(backend="fake", **settings)))
        return engines[-1]

    yield load_and_remember
    for engine in engines:
        engine.close()


class TestFakeChatEngine(ChatEngineContract):
    @pytest.fixture(params=[1, 3])
    def engine(self, load: Callable[..., FakeChatEngine], request: pytest.FixtureRequest) -> FakeChatEngine:
        return load(parallel=request.param)


class TestFakeChatEngineAtASteadyPace(ChatEngineContract):
    @pytest.fixture
    def engine(self, load: Callable[..., FakeChatEngine]) -> FakeChatEngine:
        return load(parallel=2, fake_token_s=0.0005, fake_prefill_s=0.01)


class TestFakeEmbeddingEngine(EmbeddingEngineContract):
    @pytest.fixture
    def engine(self) -> EmbeddingEngine:
        return FakeEmbeddingEngine(load_settings(backend="fake"))


# -- what it answers -------------------------------------------------------------------------------


def test_answers_differ_by_prompt_and_not_by_sampling(load: Callable[..., FakeChatEngine]) -> None:
    engine = load()
    texts = {run(engine, chat_request(f"Question {number}")).text for number in range(50)}
    assert len(texts) == 50
    assert run(engine, chat_request("Question 7")).text in texts


def test_answer_is_the_same_in_another_process() -> None:
    code = "from tests.unit.test_fake_engine import plain_answer; print(ascii(plain_answer('Hello')))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == ascii(plain_answer("Hello"))


def plain_answer(question: str) -> str:
    return "".join(answer(chat_request(question), 1000).pieces)


def test_natural_end_is_stop_after_8_to_64_tokens(load: Callable[..., FakeChatEngine]) -> None:
    engine = load()
    lengths = set()
    for number in range(100):
        sink = run(engine, chat_request(f"Question {number}"))
        assert sink.reason is FinishReason.STOP
        lengths.add(sink.usage.completion_tokens)
    assert min(lengths) >= 8
    assert max(lengths) <= 64
    assert len(lengths) > 20


@pytest.mark.parametrize("text", ["hello", "two words", "Zeile 1\n\n  Zeile 2 🙂 é", "x" * 5000, "- [ ] a\n- [x] b"])
def test_repeat_exactly_gives_the_text_back(load: Callable[..., FakeChatEngine], text: str) -> None:
    sink = run(load(), chat_request("before", "answer", f"Repeat exactly: {text}"))
    assert sink.text == text
    assert sink.reason is FinishReason.STOP


def test_marks_are_echoed_first(load: Callable[..., FakeChatEngine]) -> None:
    assert run(load(), chat_request("Tell me about MARK-123 and MARK-9f.")).text.startswith("MARK-123 MARK-9f ")


def test_endless_answer_fills_the_window_or_the_ceiling(load: Callable[..., FakeChatEngine]) -> None:
    windowed = run(load(n_ctx=256, max_model_length=2048), chat_request(ENDLESS))
    assert windowed.usage.prompt_tokens + windowed.usage.completion_tokens == 256
    assert run(load(max_model_length=100), chat_request(ENDLESS, max_tokens=500)).usage.completion_tokens == 100


@pytest.mark.parametrize("stop", [["point"], ["nowhere", " "], ["x y"], [""]])
def test_stop_text_is_cut_whatever_the_pace(load: Callable[..., FakeChatEngine], stop: list[str]) -> None:
    request = chat_request("Repeat exactly: a x y point z", stop=stop)
    expected = {"point": "a x y ", "nowhere": "a", "x y": "a ", "": "a x y point z"}[stop[0]]
    assert run(load(), request).text == expected
    assert run(load(fake_token_s=0.001), request).text == expected


def test_tokens_are_words() -> None:
    assert [count_tokens(text) for text in ("", "a", " a  b\nc ")] == [1, 1, 3]
    assert answer(chat_request("Repeat exactly: a b c"), 2) == Answer(["a", " b"], FinishReason.LENGTH, None)


# -- time ------------------------------------------------------------------------------------------


def test_flat_out_rate_is_above_300000_tokens_a_second(load: Callable[..., FakeChatEngine]) -> None:
    engine = load(n_ctx=1_000_000, max_model_length=900_000)
    sink = RecordingSink()
    ticket = engine.submit(chat_request(ENDLESS, max_tokens=300_000), sink)
    sink.wait()
    assert ticket
    assert sink.timings.predicted_n == 300_000
    assert sink.timings.predicted_ms < 1000


def test_steady_pace_gives_one_token_a_step_to_every_slot(load: Callable[..., FakeChatEngine]) -> None:
    engine = load(parallel=4, fake_token_s=0.005)
    sinks = [RecordingSink() for _ in range(4)]
    begin = time.monotonic()
    for number, sink in enumerate(sinks):
        engine.submit(chat_request(f"{ENDLESS} {number}", max_tokens=40), sink)
    for sink in sinks:
        sink.wait()
    assert time.monotonic() - begin >= 40 * 0.005
    for sink in sinks:
        assert sink.delta_tokens == [1] * 40
        assert sink.timings.predicted_ms >= 39 * 5


def test_long_prompt_takes_its_time_with_progress(load: Callable[..., FakeChatEngine]) -> None:
    engine = load(fake_prefill_s=0.2)
    sink = run(engine, chat_request(LONG_PROMPT))
    assert sink.timings.prompt_ms >= 199
    assert len(sink.progressed) == 8
    assert run(engine, chat_request("short")).timings.prompt_ms < 100


def test_cancel_in_prefill_is_seen_at_once(load: Callable[..., FakeChatEngine]) -> None:
    engine = load(fake_prefill_s=3600)
    sink = RecordingSink()
    ticket = engine.submit(chat_request(LONG_PROMPT), sink)
    ticket.cancel()
    wait_until(lambda: sink.has_ended, "the prefill was cancelled")
    assert sink.was_cancelled
    assert sink.usage.completion_tokens == 0
    assert run(engine, chat_request("next")).reason is FinishReason.STOP


def test_cancel_between_slow_tokens_is_seen_at_once(load: Callable[..., FakeChatEngine]) -> None:
    engine = load(fake_token_s=3600)
    sink = RecordingSink()
    ticket = engine.submit(chat_request("slow"), sink)
    wait_until(lambda: sink.progressed, "the prompt is in")
    ticket.cancel()
    wait_until(lambda: sink.has_ended, "the request was cancelled")
    assert sink.was_cancelled


def test_close_cancels_what_runs_and_waits(load: Callable[..., FakeChatEngine]) -> None:
    engine = load(fake_token_s=3600)
    sinks = [RecordingSink() for _ in range(3)]
    for sink in sinks:
        engine.submit(chat_request("slow"), sink)
    engine.close()
    assert all(sink.was_cancelled for sink in sinks)
    with pytest.raises(DecodeFailed, match="closed"):
        engine.submit(chat_request("too late"), RecordingSink())


# -- traps -----------------------------------------------------------------------------------------


def test_error_trap_fails_after_three_tokens(load: Callable[..., FakeChatEngine]) -> None:
    engine = load()
    sink = run(engine, chat_request("FAKE-ERROR please"))
    assert isinstance(sink.error, DecodeFailed)
    assert sum(sink.delta_tokens) == 3
    assert run(engine, chat_request("next")).error is None


def test_hang_trap_is_deaf_to_cancels_until_close(load: Callable[..., FakeChatEngine]) -> None:
    engine = load(parallel=2)
    sink, other = RecordingSink(), RecordingSink()
    ticket = engine.submit(chat_request("FAKE-HANG please"), sink)
    wait_until(lambda: sum(sink.delta_tokens) == 3, "three tokens are out")
    ticket.cancel()
    engine.submit(chat_request("behind it"), other)
    assert not threading.Event().wait(0.1)
    assert (sink.n_ends, other.n_ends) == (0, 0)
    engine.close()
    assert (sink.was_cancelled, other.was_cancelled) == (True, True)


def test_crash_trap_kills_the_process() -> None:
    code = """
        from tasks.engines.fake import FakeChatEngine
        from tasks.settings import load_settings
        from tests.engine_contract import chat_request, run
        run(FakeChatEngine(load_settings(backend="fake")), chat_request("FAKE-CRASH please"))
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert process.returncode == -9


# -- embeddings ------------------------------------------------------------------------------------


def test_embedding_trap_names_the_text() -> None:
    engine = FakeEmbeddingEngine(load_settings(backend="fake"))
    with pytest.raises(DecodeFailed) as caught:
        engine.embed(["good", "FAKE-ERROR here"])
    assert caught.value.param == "input[1]"


def test_long_embedding_is_cancelled_within() -> None:
    engine = FakeEmbeddingEngine(load_settings(backend="fake", fake_prefill_s=0.5))
    asked: list[float] = []

    def is_cancelled() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 2

    with pytest.raises(Cancelled):
        engine.embed([LONG_PROMPT], is_cancelled)
    assert asked[-1] - asked[0] < 0.4


def test_prefix_changes_the_vector() -> None:
    plain = FakeEmbeddingEngine(load_settings(backend="fake")).embed(["cats"]).vectors
    prefixed = FakeEmbeddingEngine(load_settings(backend="fake", embedding_input_prefix="query: "))
    assert not np.allclose(prefixed.embed(["cats"]).vectors, plain)


# -- loading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_loaded_by_its_name_in_the_registry(enabled: bool) -> None:
    reports: list[str] = []
    engines = load_engines(load_settings(backend="fake", embedding_enabled=enabled), reports.append)
    engines.chat.close()
    assert isinstance(engines.chat, FakeChatEngine)
    assert (engines.embedding is not None) is enabled
    assert reports
