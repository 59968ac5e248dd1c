"""Reported bugs of text completions, with a real model."""

from typing import Any

import pytest

from tests.service_calls import COMPLETIONS, GREEDY, Service, error_of

USAGE = {"stream_options": {"include_usage": True}}


def test_list_of_one_prompt_is_that_prompt(real: Service) -> None:
    """CMP-01"""
    alone, listed = real.complete("The sky is", max_tokens=6), real.complete(["The sky is"], max_tokens=6)
    assert (listed.text, listed.prompt_tokens) == (alone.text, alone.prompt_tokens)


def test_each_of_several_prompts_is_answered_as_alone(real: Service) -> None:
    """CMP-01"""
    prompts = ["The sky is", "Two plus two is", "Cats say", ""]
    answer = real.complete(prompts, max_tokens=8)
    singles = [real.complete(prompt, max_tokens=8) for prompt in prompts]
    assert [choice["index"] for choice in answer.body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer.body["choices"]] == [single.text for single in singles]
    assert answer.prompt_tokens == sum(single.prompt_tokens for single in singles)
    assert answer.completion_tokens == sum(single.completion_tokens for single in singles)


def test_a_hundred_prompts(tiny: Service) -> None:
    """CMP-01"""
    answer = tiny.complete(["a"] * 100, max_tokens=1, echo=True)
    assert [choice["index"] for choice in answer.body["choices"]] == list(range(100))
    assert len({choice["text"] for choice in answer.body["choices"]}) == 1


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(["a"] * 129, id="CMP-01 too many"),
        pytest.param([1, 2, 3], id="CMP-01 token ids"),
        pytest.param([[1, 2], [3]], id="CMP-01 lists of token ids"),
        pytest.param([], id="CMP-03 no prompt in a list"),
        pytest.param([None], id="CMP-03 null in a list"),
        pytest.param(None, id="CMP-03 null"),
        pytest.param(5, id="CMP-03 a number"),
        pytest.param({"text": "x"}, id="CMP-03 an object"),
        pytest.param(["a", 5], id="CMP-03 mixed"),
    ],
)
def test_prompt_that_is_no_text_is_refused(fake: Service, prompt: Any) -> None:
    """Never joined, never only the first of them."""
    with fake.nothing_starts():
        for stream in (False, True):
            body = {**GREEDY, "prompt": prompt, "stream": stream}
            assert error_of(fake.post(COMPLETIONS, body), 400)["param"] == "prompt"


def test_no_prompt_at_all(fake: Service) -> None:
    """CMP-03"""
    assert error_of(fake.post(COMPLETIONS, dict(GREEDY)), 400)["param"] == "prompt"


@pytest.mark.parametrize("prompt", ["", [""], " ", "\n", "\t", "\u200b"], ids=ascii)
def test_empty_and_blank_prompts_are_gone_on_from(real: Service, tiny: Service, prompt: Any) -> None:
    """CMP-03: by a model that adds a first token and one that does not."""
    for service in (real, tiny):
        answer = service.complete(prompt, max_tokens=3)
        assert answer.completion_tokens >= 1
        assert answer.prompt_tokens >= 1
        assert service.complete_stream(prompt, max_tokens=3).text == answer.text


@pytest.mark.parametrize("prompt", ["Roses are red,", "", " ", "x\n", "🎉", "<|im_start|>"], ids=ascii)
def test_echo_is_the_prompt_and_costs_nothing(real: Service, prompt: str) -> None:
    """CMP-04"""
    plain, echoed = real.complete(prompt, max_tokens=4), real.complete(prompt, max_tokens=4, echo=True)
    assert echoed.text == prompt + plain.text
    assert (echoed.completion_tokens, echoed.finish) == (plain.completion_tokens, plain.finish)
    stream = real.complete_stream(prompt, max_tokens=4, echo=True, **USAGE)
    assert stream.text == echoed.text
    assert stream.usage is not None
    assert stream.usage["completion_tokens"] == plain.completion_tokens


def test_stop_text_in_the_prompt_does_not_cut_the_echo(tiny: Service) -> None:
    """CMP-04"""
    echoed = tiny.complete("1 2 3 4", max_tokens=6, echo=True, stop=["2 3"])
    assert echoed.text.startswith("1 2 3 4")
    assert len(echoed.text) > len("1 2 3 4")


def test_form_of_a_text_completion(real: Service) -> None:
    """CMP-04: no field of a chat."""
    body = real.complete("Two plus two is", max_tokens=2).body
    assert body["object"] == "text_completion"
    assert set(body["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
