"""The decode loop when llama.cpp fails, when others call, when somebody cancels in the middle of a batch."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import pytest

from tasks.contracts import FinishReason
from tasks.engines.base import DecodeFailed, EngineError
from tasks.engines.llamacpp.decoder import Decoder
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tasks.engines.llamacpp.model import ChatModel
from tests.engine_contract import ENDLESS, RecordingSink, chat_request, run
from tests.integration.test_chat_engine import settings
from tests.support import wait_until
from tests.support_models import smollm2_path, tiny_llama_path


class Faults:
    """`llama_decode` with faults in front: `wanted(batch)` gives a status to return instead, or None."""

    def __init__(self) -> None:
        self.wanted: Callable[[Any], int | None] = lambda batch: None
        self.entered = threading.Event()
        self.n_calls = 0

    def __call__(self, context: Any, batch: Any) -> int:
        self.n_calls += 1
        self.entered.set()
        status = self.wanted(batch)
        return int(llama_cpp.llama_decode(context, batch)) if status is None else status


class Rig:
    """An engine whose decode can be made to fail."""

    def __init__(self, path: Any, **changes: Any) -> None:
        self.faults = Faults()
        chosen = settings(path, **changes)
        self.decoder = Decoder(lambda: ChatModel(chosen), decode=self.faults)
        self.engine = LlamaChatEngine(self.decoder, chosen)


@pytest.fixture
def tiny() -> Iterator[Rig]:
    rig = Rig(tiny_llama_path(), parallel=3)
    yield rig
    rig.engine.close()


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Rig]:
    rig = Rig(smollm2_path(), n_ctx=1024, n_batch=1024, n_ubatch=512)
    yield rig
    rig.engine.close()


def fail_sequence(sequence: int, status: int = 1) -> Callable[[Any], int | None]:
    def wanted(batch: Any) -> int | None:
        return status if any(batch.seq_id[n][0] == sequence for n in range(batch.n_tokens)) else None

    return wanted


@pytest.mark.parametrize("status", [1, -1, -2, -3])
def test_a_failed_decode_ends_its_request_and_the_next_is_right(tiny: Rig, status: int) -> None:
    request = chat_request("Tell me about rivers.", max_tokens=20)
    expected = run(tiny.engine, request).text
    tiny.faults.wanted = lambda batch: status
    failed = run(tiny.engine, request)
    assert isinstance(failed.error, DecodeFailed)
    assert not failed.deltas
    tiny.faults.wanted = lambda batch: None
    after = [run(tiny.engine, request) for _ in range(2)]
    assert [sink.text for sink in after] == [expected] * 2


def test_a_failure_in_the_middle_of_an_answer_clears_its_slot(tiny: Rig) -> None:
    expected = run(tiny.engine, chat_request(ENDLESS, max_tokens=40)).text
    calls_before = tiny.faults.n_calls
    tiny.faults.wanted = lambda batch: -2 if tiny.faults.n_calls > calls_before + 10 else None
    assert run(tiny.engine, chat_request(ENDLESS, max_tokens=40)).error
    tiny.faults.wanted = lambda batch: None
    again = run(tiny.engine, chat_request(ENDLESS, max_tokens=40))
    assert again.text == expected


def test_other_slots_go_on_when_one_fails(tiny: Rig) -> None:
    requests = [chat_request(f"{ENDLESS} {number}", max_tokens=60) for number in range(3)]
    alone = [run(tiny.engine, request).text for request in requests]
    tiny.faults.wanted = fail_sequence(1)
    sinks = [RecordingSink() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        tiny.engine.submit(request, sink)
    outcomes = [None if sink.wait().error else sink.text for sink in sinks]
    assert sum(outcome is None for outcome in outcomes) >= 1
    assert [text for text in outcomes if text is not None] == [
        text for text, outcome in zip(alone, outcomes, strict=True) if outcome is not None
    ]


def test_a_decode_that_raises_ends_what_runs_but_not_the_engine(tiny: Rig) -> None:
    def explode(batch: Any) -> int | None:
        raise OSError("out of luck")

    tiny.faults.wanted = explode
    error = run(tiny.engine, chat_request("x", max_tokens=4)).error
    assert isinstance(error, DecodeFailed)
    assert "luck" not in error.message
    tiny.faults.wanted = lambda batch: None
    assert run(tiny.engine, chat_request(ENDLESS, max_tokens=4)).reason is FinishReason.LENGTH


def test_a_sink_that_raises_ends_only_its_own_request(tiny: Rig) -> None:
    class Broken(RecordingSink):
        def delta(self, *_: Any, **__: Any) -> None:
            raise ValueError("broken sink")

    broken, sound = Broken(), RecordingSink()
    tiny.engine.submit(chat_request(ENDLESS, max_tokens=30), broken)
    tiny.engine.submit(chat_request(ENDLESS, max_tokens=30), sound)
    assert broken.wait().error
    assert sound.wait().reason is FinishReason.LENGTH


def test_calls_run_on_the_decode_thread_between_steps(tiny: Rig) -> None:
    sink = RecordingSink()
    ticket = sink.submit(tiny.engine, chat_request(ENDLESS, max_tokens=400))
    wait_until(lambda: sink.deltas, "the answer runs")
    names = {tiny.decoder.call(lambda: threading.current_thread().name) for _ in range(5)}
    assert names == {"decode"}
    assert not sink.has_ended
    ticket.cancel()


def test_a_call_when_idle_and_a_call_within_a_call(tiny: Rig) -> None:
    assert tiny.decoder.call(lambda: tiny.decoder.call(lambda: 42)) == 42


def test_a_calls_exception_is_its_callers(tiny: Rig) -> None:
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        tiny.decoder.call(fail)
    assert run(tiny.engine, chat_request(ENDLESS, max_tokens=2)).reason is FinishReason.LENGTH


def test_a_call_after_close_is_refused(tiny: Rig) -> None:
    tiny.engine.close()
    with pytest.raises(EngineError, match="shutting down"):
        tiny.decoder.call(lambda: 1)


def test_cancel_leaves_a_running_batch_early_and_the_cache_right(smollm2: Rig) -> None:
    question = chat_request("Name three colours.", max_tokens=10)
    expected = run(smollm2.engine, question).text
    long = chat_request("The quick brown fox jumps over the lazy dog. " * 40, max_tokens=2)
    started_s = time.perf_counter()
    whole = run(smollm2.engine, long)
    whole_s = time.perf_counter() - started_s
    assert whole.usage.prompt_tokens > 350  # several micro-batches in one batch
    run(smollm2.engine, question)
    smollm2.faults.entered.clear()
    sink = RecordingSink()
    ticket = sink.submit(smollm2.engine, long)
    assert smollm2.faults.entered.wait(30)
    started_s = time.perf_counter()
    ticket.cancel()
    sink.wait()
    assert sink.was_cancelled
    assert time.perf_counter() - started_s < whole_s / 2
    assert run(smollm2.engine, question).text == expected


def test_only_slots_of_their_own_are_touched_by_an_abort(tiny: Rig) -> None:
    expected = run(tiny.engine, chat_request(ENDLESS, max_tokens=60)).text
    kept, dropped = RecordingSink(), RecordingSink()
    kept.submit(tiny.engine, chat_request(ENDLESS, max_tokens=60))
    dropped.submit(tiny.engine, chat_request("word " * 400, max_tokens=60)).cancel()
    assert dropped.wait().was_cancelled
    assert kept.wait().text == expected


def test_a_load_failure_reaches_the_one_who_loads() -> None:
    def fail() -> ChatModel:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        Decoder(fail)
