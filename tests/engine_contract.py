"""What every chat engine does. A test class for an engine inherits `ChatEngineContract` and has a fixture `engine`."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from tasks.contracts import FinishReason, GenerateRequest, Sampling, Timings, TokenLogprob, Usage
from tasks.engines.base import ChatEngine, ContextLengthExceeded, EngineError, InvalidRequest, Ticket
from tests.support import wait_until

GREEDY = Sampling(temperature=0)
ENDLESS = "Never stop. Count to 1000."  #: no engine ends its answer within 100 tokens
WAIT_S = 120.0  #: for an answer on a busy machine


class RecordingSink:
    """A FrameSink that keeps everything, and may cancel its request at the first `progress` or `delta`."""

    def __init__(self, cancel_at: str = "") -> None:
        self.deltas: list[str] = []
        self.delta_tokens: list[int] = []
        self.texts: dict[int, list[str]] = {}  #: by choice, without reasoning
        self.reasonings: dict[int, list[str]] = {}
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.calls: list[tuple[int, int, str, str, str]] = []  #: choice, index, id, name, arguments
        self.reasons: dict[int, FinishReason] = {}  #: of all choices but the last
        self.progressed: list[tuple[int, int]] = []
        self.reason: FinishReason | None = None
        self.usage = Usage()
        self.timings = Timings()
        self.error: EngineError | None = None
        self.was_cancelled = False
        self.n_ends = 0
        self.frames_after_end = 0
        self._cancel_at = cancel_at
        self._ticket: Future[Ticket] = Future()
        self._ended = threading.Event()

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    def progress(self, done: int, total: int) -> None:
        self.frames_after_end += self.n_ends
        self.progressed.append((done, total))
        self._cancel_if_at("progress")

    def delta(
        self,
        text: str,
        tokens: int,
        choice: int = 0,
        is_reasoning: bool = False,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        self.frames_after_end += self.n_ends
        self.deltas.append(text)
        (self.reasonings if is_reasoning else self.texts).setdefault(choice, []).append(text)
        self.logprobs.setdefault(choice, []).extend(logprobs)
        self.delta_tokens.append(tokens)
        self._cancel_if_at("delta")

    def tool_call(self, choice: int, index: int, call_id: str, name: str, arguments: str) -> None:
        self.frames_after_end += self.n_ends
        self.calls.append((choice, index, call_id, name, arguments))

    def choice_finished(self, choice: int, reason: FinishReason) -> None:
        self.frames_after_end += self.n_ends
        self.reasons[choice] = reason

    def finished(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        self.reason, self.usage, self.timings = reason, usage, timings
        self._end()

    def failed(self, error: EngineError) -> None:
        self.error = error
        self._end()

    def cancelled(self, usage: Usage) -> None:
        self.was_cancelled, self.usage = True, usage
        self._end()

    def wait(self) -> "RecordingSink":
        assert self._ended.wait(WAIT_S), "the request did not end"
        return self

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def submit(self, engine: ChatEngine, request: GenerateRequest) -> Ticket:
        ticket = engine.submit(request, self)
        self._ticket.set_result(ticket)
        return ticket

    def _cancel_if_at(self, frame: str) -> None:
        if self._cancel_at == frame:
            self._ticket.result(WAIT_S).cancel()

    def _end(self) -> None:
        self.n_ends += 1
        self._ended.set()


def chat_request(*contents: str, **fields: Any) -> GenerateRequest:
    """Turns of user and assistant by turns, the user first; greedy."""
    roles = ("user", "assistant")
    messages: list[dict[str, Any]] = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    return GenerateRequest(
        **{"id": "chatcmpl-test", "model": "m", "reply_to": "r", "messages": messages, "sampling": GREEDY, **fields}
    )


def run(engine: ChatEngine, request: GenerateRequest) -> RecordingSink:
    """The request's frames, when it has ended."""
    sink = RecordingSink()
    engine.submit(request, sink)
    return sink.wait()


class ChatEngineContract:
    """Inherited by the tests of each engine."""

    @pytest.mark.parametrize("max_tokens", [1, 2, 5, 17])
    def test_max_tokens_is_counted_exactly(self, engine: ChatEngine, max_tokens: int) -> None:
        sink = run(engine, chat_request(ENDLESS, max_tokens=max_tokens))
        assert sink.error is None
        assert sink.usage.completion_tokens == max_tokens
        assert sink.reason is FinishReason.LENGTH
        assert sink.timings.predicted_n == max_tokens
        assert sum(sink.delta_tokens) <= max_tokens

    def test_exactly_one_end_and_nothing_after_it(self, engine: ChatEngine) -> None:
        sink = run(engine, chat_request("Say hello.", max_tokens=8))
        run(engine, chat_request("Say hello.", max_tokens=1))
        assert (sink.n_ends, sink.frames_after_end) == (1, 0)

    def test_no_delta_is_empty(self, engine: ChatEngine) -> None:
        sink = run(engine, chat_request("Say hello.", max_tokens=8))
        assert sink.deltas
        assert all(sink.deltas)

    def test_prefill_progress_grows_to_the_whole_prompt(self, engine: ChatEngine) -> None:
        sink = run(engine, chat_request("Tell me about rivers. " * 12, max_tokens=1))
        done = [done for done, _ in sink.progressed]
        assert done == sorted(set(done))
        assert sink.progressed[-1] == (sink.usage.prompt_tokens, sink.usage.prompt_tokens)

    def test_the_same_greedy_request_gives_the_same_text(self, engine: ChatEngine) -> None:
        texts = {run(engine, chat_request("Name three colours.", max_tokens=12)).text for _ in range(3)}
        assert len(texts) == 1

    def test_stop_text_never_leaves(self, engine: ChatEngine) -> None:
        request = {"max_tokens": 30}
        whole = run(engine, chat_request(ENDLESS, **request)).text
        stop = whole[len(whole) // 2 :][:4]
        sink = run(engine, chat_request(ENDLESS, stop=["", "\0never", stop], **request))
        assert sink.text == whole[: whole.index(stop)]
        assert sink.reason is FinishReason.STOP

    def test_too_long_prompt_is_refused_at_once_with_both_numbers(self, engine: ChatEngine) -> None:
        sink = RecordingSink()
        with pytest.raises(ContextLengthExceeded) as caught:
            engine.submit(chat_request("word " * engine.n_ctx * 2), sink)
        assert str(engine.n_ctx) in caught.value.message
        assert caught.value.param == "messages"
        assert not sink.progressed

    def test_text_completion_names_its_own_field(self, engine: ChatEngine) -> None:
        request = chat_request(messages=None, prompts=["word " * engine.n_ctx] * 2)
        with pytest.raises(ContextLengthExceeded) as caught:
            engine.submit(request, RecordingSink())
        assert caught.value.param == "prompt[0]"

    def test_text_completion(self, engine: ChatEngine) -> None:
        sink = run(engine, chat_request(messages=None, prompts=["Once upon a"], max_tokens=4))
        assert sink.usage.completion_tokens == 4
        assert sink.text

    def test_cancel_while_generating_ends_with_cancelled_and_frees_the_slot(self, engine: ChatEngine) -> None:
        sink = RecordingSink(cancel_at="delta")
        ticket = sink.submit(engine, chat_request(ENDLESS, max_tokens=500))
        wait_until(lambda: sink.has_ended, "the request ended", WAIT_S)
        assert sink.was_cancelled
        assert sink.usage.completion_tokens < 500
        ticket.cancel()
        assert run(engine, chat_request(ENDLESS, max_tokens=2)).reason is FinishReason.LENGTH
        assert sink.n_ends == 1

    def test_cancel_while_waiting_for_a_slot(self, engine: ChatEngine) -> None:
        running = [RecordingSink() for _ in range(engine.n_slots)]
        tickets = [engine.submit(chat_request(ENDLESS, max_tokens=500), sink) for sink in running]
        waiting = RecordingSink()
        engine.submit(chat_request("Say hello."), waiting).cancel()
        assert waiting.wait().was_cancelled
        assert not waiting.progressed
        for ticket in tickets:
            ticket.cancel()
        assert all(sink.wait().n_ends == 1 for sink in running)

    def test_choices_come_one_after_the_other_the_first_first(self, engine: ChatEngine) -> None:
        prompts = ["Once upon a time", "The river"]
        sink = run(engine, chat_request(messages=None, prompts=prompts, n=3, max_tokens=4))
        assert sink.error is None
        assert list(sink.texts) == list(range(6))
        assert list(sink.reasons) == list(range(5))
        assert sink.usage.completion_tokens == sink.timings.predicted_n == 24
        singles = [run(engine, chat_request(messages=None, prompts=[prompt], max_tokens=4)) for prompt in prompts]
        assert sink.usage.prompt_tokens == sum(single.usage.prompt_tokens for single in singles)
        assert ["".join(sink.texts[0]), "".join(sink.texts[3])] == [single.text for single in singles]

    def test_the_first_of_several_choices_is_that_of_a_request_for_one(self, engine: ChatEngine) -> None:
        sink = run(engine, chat_request("Say hello.", max_tokens=6, n=2))
        assert "".join(sink.texts[0]) == run(engine, chat_request("Say hello.", max_tokens=6)).text
        assert sink.n_ends == 1

    def test_a_too_long_prompt_among_several_is_named(self, engine: ChatEngine) -> None:
        prompts = ["Hello", "word " * engine.n_ctx * 2, "Hello"]
        with pytest.raises(ContextLengthExceeded) as caught:
            engine.submit(chat_request(messages=None, prompts=prompts), RecordingSink())
        assert caught.value.param == "prompt[1]"

    @pytest.mark.parametrize("n_top", [0, 2, 20])
    def test_log_probabilities_are_of_the_tokens_of_the_text(self, engine: ChatEngine, n_top: int) -> None:
        sink = run(engine, chat_request("Count to ten.", max_tokens=8, logprobs=n_top))
        tokens = sink.logprobs[0]
        assert b"".join(token.token for token in tokens).decode(errors="replace") == sink.text
        assert all(len(token.top) == n_top and -10_000 < token.logprob <= 0 for token in tokens)
        assert not run(engine, chat_request("Count to ten.", max_tokens=8)).logprobs.get(0)

    def test_more_requests_than_slots_are_all_answered(self, engine: ChatEngine) -> None:
        sinks = [RecordingSink() for _ in range(engine.n_slots * 2 + 1)]
        for number, sink in enumerate(sinks):
            engine.submit(chat_request(f"Say the number {number}.", max_tokens=6), sink)
        assert [sink.wait().reason for sink in sinks if sink.wait().error is None]
        assert all(sink.n_ends == 1 and sink.error is None for sink in sinks)

    # -- questions about tokens --------------------------------------------------------------------

    def test_pieces_of_a_text_s_tokens_give_the_text(self, engine: ChatEngine) -> None:
        tokens = engine.tokenize_text("two words and café")

        assert b"".join(engine.token_pieces(tokens)).decode().strip() == "two words and café"
        assert engine.tokenize_text("") == []

    def test_a_token_that_the_model_lacks_is_named(self, engine: ChatEngine) -> None:
        (first, *_) = engine.tokenize_text("hello")
        for lacking in (2**31 - 1, -1):
            with pytest.raises(InvalidRequest) as error:
                engine.token_pieces([first, lacking])
            assert error.value.param == "tokens[1]"

    def test_the_prompt_is_rendered_and_counted_as_it_is_decoded(self, engine: ChatEngine) -> None:
        request = chat_request("How many tokens are these?", max_tokens=1)

        assert "How many tokens are these?" in engine.render_prompt(request)
        assert engine.count_tokens(request) == run(engine, request).usage.prompt_tokens

    def test_questions_are_answered_without_the_decode_thread(self, engine: ChatEngine) -> None:
        class HeldSink(RecordingSink):
            """Holds the decode thread at the first text until the question is answered."""

            def __init__(self) -> None:
                super().__init__()
                self.is_held, self.may_go_on = threading.Event(), threading.Event()

            def delta(self, *args: Any, **kwargs: Any) -> None:
                self.is_held.set()
                self.may_go_on.wait(WAIT_S)
                super().delta(*args, **kwargs)

        sink = HeldSink()
        engine.submit(chat_request("Say hello.", max_tokens=4), sink)
        assert sink.is_held.wait(WAIT_S)
        try:
            counted = engine.count_tokens(chat_request("Say hello."))
            assert engine.token_pieces(engine.tokenize_text("hello"))
            assert not sink.has_ended
        finally:
            sink.may_go_on.set()
        assert sink.wait().usage.prompt_tokens == counted
