"""Answers that a grammar holds to: JSON at any temperature, marks where the grammar begins and ends, failures."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from tasks.answer_parts import AnswerParser, AnswerPart, AnswerPlan, CallPart, TextPart
from tasks.contracts import FinishReason, GenerateRequest, Grammar, GrammarKind, Sampling
from tasks.engines.base import DecodeFailed, InvalidRequest
from tasks.engines.llamacpp.constraint import Constraint
from tasks.engines.llamacpp.decoder import Decoder
from tasks.engines.llamacpp.engine import LlamaChatEngine, with_plan
from tasks.engines.llamacpp.model import ChatModel
from tests.engine_contract import GREEDY, RecordingSink, chat_request, run
from tests.integration.test_chat_engine import settings
from tests.support_models import smollm2_path, tiny_llama_path, tiny_llama_with_marks_path

HOT: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["gut", "schön 🎉", "漢字"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "mood", "tags"],
    "additionalProperties": False,
}


class Rig:
    """An engine whose requests' plans are given by the test."""

    def __init__(self, path: Path, **changes: Any) -> None:
        chosen = settings(path, **changes)
        self.decoder = Decoder(lambda: ChatModel(chosen))
        self.engine = LlamaChatEngine(self.decoder, chosen)

    def run(self, request: GenerateRequest, plan: AnswerPlan) -> RecordingSink:
        sink = RecordingSink()
        prompt = self.engine._prompt(request, request.max_tokens or 100)
        self.decoder.submit(with_plan(prompt, plan, self.decoder.model, "response_format"), sink)
        return sink.wait()


class PlainParser:
    in_reasoning = is_free = has_calls = is_done = False

    def feed(self, text: str) -> list[AnswerPart]:
        return [TextPart(text)]

    def finish(self) -> list[AnswerPart]:
        return []


class MarkParser:
    """`<think>` ... `</think>` is reasoning, what follows is answer; free text ends at `after`, which is no text."""

    is_done = False

    def __init__(self, after: str = "</think>", is_free: bool = True, in_reasoning: bool = False) -> None:
        self.after, self.is_free, self.in_reasoning, self.has_calls = after, is_free, in_reasoning, False
        self.held = ""

    def feed(self, text: str) -> list[AnswerPart]:
        self.held += text
        if not self.is_free and self.held.startswith("<think>"):
            self.is_free = self.in_reasoning = True
            self.held = self.held[len("<think>") :]
        if self.is_free and self.after in self.held:
            before, self.held = self.held.split(self.after, 1)
            was, self.is_free, self.in_reasoning = self.in_reasoning, False, False
            return [*([TextPart(before, was)] if before else []), *self.feed("")]
        if self.is_free:
            return []
        text, self.held = self.held, ""
        return [TextPart(text)] if text else []

    def finish(self) -> list[AnswerPart]:
        return [TextPart(self.held, self.in_reasoning)] if self.held else []


def schema_plan(schema: dict[str, Any], parser: Callable[[], AnswerParser] = PlainParser, **more: Any) -> AnswerPlan:
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
    return AnswerPlan(parser, grammar=grammar, **more)


def regex_plan(regex: str, parser: Callable[[], AnswerParser] = PlainParser, **more: Any) -> AnswerPlan:
    return AnswerPlan(parser, grammar=LLMatcher.grammar_from_regex(regex), **more)


@pytest.fixture(scope="module", params=["smollm2", "tiny"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(smollm2_path() if request.param == "smollm2" else tiny_llama_path(), parallel=2)
    yield rig
    rig.engine.close()


def valid_person(text: str) -> dict[str, Any]:
    person: dict[str, Any] = json.loads(text)
    assert set(person) == set(PERSON["properties"])
    assert 0 <= person["age"] <= 150
    assert person["mood"] in PERSON["properties"]["mood"]["enum"]
    assert 1 <= len(person["tags"]) <= 3
    return person


@pytest.mark.parametrize("seed", range(12))
def test_json_is_whole_and_valid_at_a_high_temperature(rig: Rig, seed: int) -> None:
    sampling = Sampling(**HOT, seed=seed)
    sink = rig.run(chat_request("Describe a person.", max_tokens=400, sampling=sampling), schema_plan(PERSON))
    assert sink.error is None
    assert sink.reason is FinishReason.STOP
    valid_person(sink.text)


@pytest.mark.parametrize(
    "change",
    [
        *({"typical_p": 0.5}, {"mirostat": 1}, {"mirostat": 2}, {"xtc_probability": 1.0}, {"dry_multiplier": 2.0}),
        *({"repeat_penalty": 1.5}, {"top_k": 3}, {"ignore_eos": True}, {"min_tokens": 300}, {"temperature": 0.0}),
        {"logit_bias": [("}", -100.0)]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_json_holds_with_every_sampler(rig: Rig, change: dict[str, Any]) -> None:
    sampling = Sampling(**{**HOT, "seed": 1, **change})
    sink = rig.run(chat_request("Describe a person.", max_tokens=400, sampling=sampling), schema_plan(PERSON))
    assert sink.reason is FinishReason.STOP
    valid_person(sink.text)


def test_a_seed_repeats_a_constrained_answer_and_choices_count_it_up(rig: Rig) -> None:
    def asked(seed: int, n: int = 1) -> RecordingSink:
        request = chat_request("A person.", max_tokens=300, n=n, sampling=Sampling(**HOT, seed=seed))
        return rig.run(request, schema_plan(PERSON))

    together = asked(5, 3)
    assert ["".join(together.texts[choice]) for choice in range(3)] == [asked(seed).text for seed in (5, 6, 7)]


def test_characters_of_several_bytes_are_kept_to(rig: Rig) -> None:
    sink = rig.run(chat_request("Hi", max_tokens=60, sampling=Sampling(**HOT, seed=2)), regex_plan("(🎉|漢|ß){5}"))
    assert len(sink.text) == 5
    assert set(sink.text) <= set("🎉漢ß")


def test_logprobs_are_those_before_the_grammar(rig: Rig) -> None:
    free = run(rig.engine, chat_request("Hi", max_tokens=1, logprobs=5)).logprobs[0][0]
    sink = rig.run(chat_request("Hi", max_tokens=30, logprobs=5), regex_plan("zq[0-9]{3}"))
    kept = sink.logprobs[0]
    assert kept[0].top == free.top
    assert b"".join(token.token for token in kept).decode() == sink.text


def test_an_answer_that_is_whole_at_max_tokens_has_stopped(rig: Rig) -> None:
    plan = regex_plan("[0-9]{3}")
    used = rig.run(chat_request("Hi", max_tokens=50), plan).usage.completion_tokens
    exact = rig.run(chat_request("Hi", max_tokens=used), plan)
    assert (exact.reason, exact.usage.completion_tokens) == (FinishReason.STOP, used)
    assert rig.run(chat_request("Hi", max_tokens=used - 1), plan).reason is FinishReason.LENGTH


def test_the_model_may_end_where_the_grammar_may(rig: Rig) -> None:
    forced = Sampling(temperature=0, logit_bias=[(token, 100.0) for token in rig.decoder.model.vocab.eog])
    sink = rig.run(chat_request("Hi", max_tokens=50, sampling=forced), regex_plan("[0-9]{3}[a-z]*"))
    assert len(sink.text) == 3
    assert sink.reason is FinishReason.STOP


def test_stop_texts_hold_within_a_grammar(rig: Rig) -> None:
    sink = rig.run(chat_request("Hi", max_tokens=50, stop=["abc"]), regex_plan("[0-9]{2}abc[0-9]{9}"))
    assert (len(sink.text), sink.reason) == (2, FinishReason.STOP)


@pytest.mark.parametrize("stop", [[], ["\n{", ">1"]], ids=["no stops", "stops that hold text back"])
def test_the_grammar_begins_where_free_text_ends(rig: Rig, stop: list[str]) -> None:
    """The mark is forced by biases: only its characters can be sampled while the text is free."""
    mark = rig.decoder.model.vocab.tokenize("Q")[-1]
    sampling = Sampling(temperature=0, logit_bias=[(mark, 100.0)])
    plan = regex_plan("[0-9]{4}", lambda: MarkParser(after="Q"))
    sink = rig.run(chat_request("Hi", max_tokens=50, sampling=sampling, stop=stop), plan)
    assert sink.text.strip().isdigit()
    assert len(sink.text.strip()) == 4
    assert sink.reason is FinishReason.STOP


def test_reasoning_is_told_apart_and_counted(rig: Rig) -> None:
    mark = rig.decoder.model.vocab.tokenize("Q")[-1]
    sampling = Sampling(temperature=0, logit_bias=[(mark, 14.0)])
    plan = regex_plan("[0-9]{4}", lambda: MarkParser(after="Q", in_reasoning=True))
    sink = rig.run(chat_request("Hi", max_tokens=80, sampling=sampling, logprobs=1), plan)
    answer = "".join(sink.texts.get(0, []))
    assert answer.strip().isdigit()
    assert "Q" not in "".join(sink.reasonings.get(0, []))
    assert sink.usage.reasoning_tokens == sink.usage.completion_tokens - len(sink.logprobs[0]) > 0
    assert b"".join(token.token for token in sink.logprobs[0]).decode() == answer


def test_an_opening_mark_comes_before_the_grammar() -> None:
    rig = Rig(tiny_llama_with_marks_path())
    try:
        opening, closing = (rig.decoder.model.vocab.single_token(mark) for mark in ("<think>", "</think>"))
        assert opening is not None
        assert closing is not None
        plan = regex_plan("[0-9]{4}", lambda: MarkParser(is_free=False), opening="<think>")
        thinking = Sampling(temperature=0, logit_bias=[(opening, 30.0), (closing, 40.0)])
        sink = rig.run(chat_request("Hi", max_tokens=80, sampling=thinking), plan)
        assert (len(sink.text), sink.text.isdigit()) == (4, True)
        assert (sink.usage.completion_tokens, sink.usage.reasoning_tokens) == (6, 1)
        silent = Sampling(temperature=0, logit_bias=[(opening, -100.0)])
        assert rig.run(chat_request("Hi", max_tokens=80, sampling=silent), plan).text.isdigit()
    finally:
        rig.engine.close()


def test_preserved_control_tokens_are_spelled_for_the_parser() -> None:
    rig = Rig(tiny_llama_with_marks_path())
    try:
        mark = rig.decoder.model.vocab.single_token("<|fim_prefix|>")
        assert mark is not None
        sampling = Sampling(temperature=0, logit_bias=[(mark, 100.0)])
        request = chat_request("Hi", max_tokens=2, sampling=sampling)
        plan = AnswerPlan(PlainParser, preserved=frozenset({"<|fim_prefix|>"}))
        assert rig.run(request, plan).text == "<|fim_prefix|>" * 2
        assert rig.run(request, AnswerPlan(PlainParser)).text == ""
        constrained = regex_plan("[0-9]{4}", lambda: MarkParser(after="<|fim_prefix|>"))
        constrained = constrained._replace(preserved=frozenset({"<|fim_prefix|>"}))
        sink = rig.run(chat_request("Hi", max_tokens=20, sampling=sampling), constrained)
        assert (sink.text.isdigit(), sink.usage.completion_tokens) == (True, 5)
    finally:
        rig.engine.close()


@pytest.mark.parametrize("text", ["ab<think>cd", "x</think></think>", "<think>1<|im_end|>", "<unk>[fim]"])
def test_marks_in_a_grammars_own_text_are_text(text: str) -> None:
    rig = Rig(tiny_llama_with_marks_path())
    try:
        plan = AnswerPlan(PlainParser, grammar=LLMatcher.grammar_from_json_schema({"const": text}))
        sink = rig.run(chat_request("Hi", max_tokens=60), plan)
        assert sink.error is None
        assert json.loads(sink.text) == text
    finally:
        rig.engine.close()


def test_a_call_ends_with_the_reason_tool_calls(rig: Rig) -> None:
    class CallParser(PlainParser):
        def feed(self, text: str) -> list[AnswerPart]:
            first = not self.has_calls
            self.has_calls = True
            return [CallPart(0, "call_1" if first else "", "f" if first else "", text)]

    sink = rig.run(chat_request("Hi", max_tokens=90), regex_plan('\\{"a":[0-9]{2}\\}', CallParser))
    assert sink.reason is FinishReason.TOOL_CALLS
    assert json.loads("".join(call[4] for call in sink.calls))
    assert [call[3] for call in sink.calls if call[3]] == ["f"]
    assert not sink.deltas


def test_an_answer_ends_when_its_parser_is_done(rig: Rig) -> None:
    class DoneParser(PlainParser):
        def feed(self, text: str) -> list[AnswerPart]:
            self.is_done = self.has_calls = True
            return [CallPart(0, "call_1", "f", "{}")]

    sink = rig.run(chat_request("Hi", max_tokens=90), AnswerPlan(DoneParser))
    assert sink.reason is FinishReason.TOOL_CALLS
    assert sink.usage.completion_tokens < 90


def test_text_that_the_grammar_cannot_take_is_passed_over(rig: Rig) -> None:
    model = rig.decoder.model
    fresh = model.grammar_tokens.compile(LLMatcher.grammar_from_regex("[0-9]{2}"), "grammar")
    for beginning, left in ((b"", 2), (b"1", 1), (b"\n", 2), (b"12", 0)):
        constraint = Constraint(model.grammar_tokens, fresh, model.vocab)
        constraint.begin(beginning)
        assert constraint.must_end is (left == 0)


def test_a_grammar_that_is_none_is_the_clients_fault(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used with this model") as caught:
        rig.decoder.model.grammar_tokens.compile(LLMatcher.grammar_from_lark("start: missing"), "grammar")
    assert caught.value.param == "grammar"


def test_a_matcher_in_its_error_state_is_a_failed_decode(rig: Rig) -> None:
    model = rig.decoder.model
    fresh = model.grammar_tokens.compile(LLMatcher.grammar_from_regex("[0-9]{2}"), "grammar")
    constraint = Constraint(model.grammar_tokens, fresh, model.vocab)
    constraint.begin()
    with pytest.raises(DecodeFailed, match="kept to its grammar"):
        constraint.take(model.vocab.tokenize("x")[-1])


def test_a_grammar_that_takes_too_much_work_ends_its_request_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Constraint, token: int) -> None:
        raise DecodeFailed("The answer could not be kept to its grammar: too complex")

    monkeypatch.setattr(Constraint, "take", fail)
    sink = rig.run(chat_request("Hi", max_tokens=9), regex_plan("[0-9]{4}"))
    assert sink.error is not None
    assert "grammar" in sink.error.message
    monkeypatch.undo()
    assert rig.run(chat_request("Hi", max_tokens=9, sampling=GREEDY), regex_plan("[0-9]{4}")).error is None


def test_a_text_completion_has_a_grammar_too(rig: Rig) -> None:
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(PERSON))
    request = chat_request(
        messages=None, prompts=["A person: "], grammar=grammar, max_tokens=400, sampling=Sampling(**HOT, seed=1)
    )
    valid_person(run(rig.engine, request).text)
