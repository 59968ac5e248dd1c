"""A whole answer from its frames."""

from api.protocol.choices import Answer, AnswerBuilder, Call, Part
from tasks.contracts import FinishReason
from tests.unit.fake_jobs import call, delta, ended, finished, reasoning, scored


def build(*parts: Part, reason: FinishReason = FinishReason.STOP) -> Answer:
    builder = AnswerBuilder()
    for part in parts:
        builder.add(part)
    return builder.end(finished(reason))


def test_text_reasoning_and_calls_of_one_choice() -> None:
    parts: list[Part] = [
        reasoning("Hm"),
        reasoning("."),
        delta("I "),
        delta("look."),
        call(0, "weather", '{"city": '),
        call(0, "", '"Oslo"}'),
        call(1, "time", "{}"),
    ]
    [choice] = build(*parts, reason=FinishReason.TOOL_CALLS).choices
    assert (choice.reasoning, choice.text) == ("Hm.", "I look.")
    assert choice.calls == [Call("call_00", "weather", '{"city": "Oslo"}'), Call("call_01", "time", "{}")]
    assert choice.finish_reason is FinishReason.TOOL_CALLS


def test_each_choice_has_its_own_finish_reason() -> None:
    answer = build(delta("a"), ended(0, FinishReason.LENGTH), delta("b", choice=1), ended(1), delta("c", choice=2))
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [
        ("a", FinishReason.LENGTH),
        ("b", FinishReason.STOP),
        ("c", FinishReason.STOP),
    ]


def test_choices_that_say_nothing_are_choices() -> None:
    answer = build(ended(0), ended(1), reason=FinishReason.LENGTH)
    assert [(choice.text, choice.finish_reason.value) for choice in answer.choices] == [
        ("", "stop"),
        ("", "stop"),
        ("", "length"),
    ]


def test_calls_of_two_choices_are_apart() -> None:
    answer = build(call(0, "a", "1"), ended(0, FinishReason.TOOL_CALLS), call(0, "b", "2", choice=1))
    assert [choice.calls[0].name for choice in answer.choices] == ["a", "b"]


def test_logprobs_are_those_of_the_text() -> None:
    thought = reasoning("Hm.")
    [choice] = build(thought, scored((" a", -1.0)), scored((" b", -2.0), (" c", -3.0))).choices
    assert [(token.token, token.logprob) for token in choice.logprobs] == [(b" a", -1.0), (b" b", -2.0), (b" c", -3.0)]


def test_usage_is_that_of_the_whole_request() -> None:
    assert build(delta("a")).usage == finished().usage
