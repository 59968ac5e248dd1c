"""Reported bugs of the context window and of what the engine keeps between requests."""

from typing import Any

import pytest

from tests.service_calls import CHATS, COMPLETIONS, Service, chat_body, error_of
from tests.stack import CHAT, N_CTX

MOON = "Tell me three facts about the Moon."
TINY_N_CTX = 1024


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n_words", [N_CTX, 2 * N_CTX, 100_000])
@pytest.mark.parametrize(("path", "field"), [(CHATS, "messages"), (COMPLETIONS, "prompt")])
def test_too_long_prompt_is_told_both_numbers(real: Service, path: str, field: str, n_words: int, stream: bool) -> None:
    """CTX-01: without a prefill, so an answer comes at once whatever the length."""
    text = "word " * n_words
    body: dict[str, Any] = chat_body(text) if path == CHATS else {"model": CHAT, "prompt": text}
    error = error_of(real.post(path, body | {"stream": stream}), 400, "context_length_exceeded")
    assert error["param"] == field
    numbers = [int(word) for word in error["message"].replace(",", " ").replace(".", " ").split() if word.isdigit()]
    assert N_CTX in numbers
    assert any(number > n_words for number in numbers)


def test_prompt_may_be_as_long_as_leaves_one_token(tiny: Service) -> None:
    """CTX-01: the border itself, token by token."""
    n_other = tiny.complete("", max_tokens=1).prompt_tokens
    for n_missing in (3, 2, 1):
        answer = tiny.complete("~" * (TINY_N_CTX - n_other - n_missing - 1), max_tokens=50)
        assert answer.prompt_tokens + answer.completion_tokens <= TINY_N_CTX
        assert answer.completion_tokens >= 1
    body = {"model": CHAT, "prompt": "~" * (TINY_N_CTX + 1)}
    error_of(tiny.post(COMPLETIONS, body), 400, "context_length_exceeded")


def test_answer_ends_where_the_window_does(tiny: Service) -> None:
    """CTX-01"""
    answer = tiny.chat("b" * 900, max_tokens=500)
    assert answer.prompt_tokens + answer.completion_tokens == TINY_N_CTX
    assert answer.finish == "length"


def test_requests_that_fail_leave_nothing_behind(real: Service) -> None:
    """CTX-04: too long ones, and streams that are left in their prefill and in their answer."""
    asked = {"max_tokens": 12}
    expected = real.chat(MOON, **asked).text
    error_of(real.post(CHATS, chat_body(MOON + " word" * 2 * N_CTX)), 400)
    assert real.chat(MOON, **asked).text == expected
    with real.client.stream("POST", CHATS, json=chat_body(MOON + " word" * (N_CTX // 2), stream=True)) as left:
        assert left.status_code == 200
    assert real.chat(MOON, **asked).text == expected
    with real.opened_stream(MOON, max_tokens=500):
        pass
    assert real.chat(MOON, **asked).text == expected


def test_same_prompt_again_and_again(real: Service) -> None:
    """CTX-05: nothing is left to decode then; and what extends it, and what it begins with."""
    asked = {"max_tokens": 10}
    first, second, third = (real.chat(MOON, **asked) for _ in range(3))
    turns = [*chat_body(MOON)["messages"], {"role": "assistant", "content": first.text}]
    longer = real.chat([*turns, {"role": "user", "content": "And two more?"}], **asked)
    last = real.chat(MOON, **asked)
    assert {answer.text for answer in (first, second, third, last)} == {first.text}
    assert {answer.prompt_tokens for answer in (first, second, third, last)} == {first.prompt_tokens}
    assert longer.prompt_tokens > first.prompt_tokens + first.completion_tokens
    details = third.body["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == third.prompt_tokens - 2  # the last two are decoded, never one alone


def test_what_ran_between_changes_nothing(tiny: Service) -> None:
    """CTX-04, CTX-05, PAR-04: many prompts that share beginnings, in two orders, greedy and by a seed."""
    prompts = ["a" * length + end for length in (1, 5, 30, 200) for end in ("", "b", " dog and cat")]
    for sampling in ({"temperature": 0}, {"temperature": 1.2, "seed": 5}):
        asked: dict[str, Any] = {"max_tokens": 20, **sampling}
        there = {prompt: tiny.complete(prompt, **asked).text for prompt in prompts}
        back = {prompt: tiny.complete(prompt, **asked).text for prompt in reversed(prompts)}
        assert there == back


def test_embeddings_between_chats_change_nothing(real: Service) -> None:
    """CTX-05, PAR-04"""
    asked: dict[str, Any] = {"max_tokens": 8, "temperature": 0.9, "seed": 123}
    first = real.chat(MOON, **asked).text
    vector = real.vectors("a text")
    assert real.chat(MOON, **asked).text == first
    assert (real.vectors("a text") == vector).all()
