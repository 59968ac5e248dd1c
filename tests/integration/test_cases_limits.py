"""Reported bugs of max_tokens."""

from typing import Any

import pytest

from tests.service_calls import CHATS, COMPLETIONS, POSTS, Service, error_of, good
from tests.stack import N_CTX

SAID = "Say anything."  #: the tiny model goes on for long after this
NAMES = ("max_tokens", "max_completion_tokens")
CAP = 1024  #: the LIS_MAX_MODEL_LENGTH of these services
USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(0, id="LIM-01 0"),
        pytest.param(-1, id="LIM-03 -1"),
        pytest.param(-2, id="LIM-03 -2"),
        pytest.param(-(2**40), id="LIM-03 -2**40"),
        *["10", "", True, False, 0.5, 1.5, [], {}, [5]],
    ],
)
@pytest.mark.parametrize("path", [CHATS, COMPLETIONS])
def test_what_is_no_limit_is_refused(fake: Service, path: str, value: Any, name: str) -> None:
    with fake.nothing_starts():
        for stream in (False, True):
            error = error_of(fake.post(path, dict(POSTS)[path] | {name: value, "stream": stream}), 400)
            assert error["param"] == name
            assert name in error["message"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [15821, 2**31 - 1, 2**31, 2**63, 10**30, 1e30])
def test_far_too_large_a_limit_is_the_largest_there_is(fake: Service, value: float, name: str) -> None:
    """LIM-04: what is left of the window, or the server's own ceiling."""
    asked: dict[str, Any] = {"max_tokens": None, name: value}
    answer = fake.chat("Never stop.", **asked)
    assert (answer.completion_tokens, answer.finish) == (CAP, "length")
    nearly_full = fake.chat("Never stop. " + "word " * (N_CTX - 50), **asked)
    assert nearly_full.prompt_tokens + nearly_full.completion_tokens == N_CTX


def test_far_too_large_a_limit_with_a_real_engine(tiny: Service) -> None:
    """LIM-04"""
    answer = tiny.complete("a" * 1000, max_tokens=10**12)
    assert answer.completion_tokens >= 1
    assert answer.prompt_tokens + answer.completion_tokens <= 1024


@pytest.mark.parametrize("value", [None, pytest.param("absent", id="absent")])
def test_without_a_limit_the_servers_own_holds(fake: Service, value: Any) -> None:
    """LIM-03: nothing runs without bound."""
    body = {key: item for key, item in dict(POSTS)[CHATS].items() if key != "max_tokens"}
    body["messages"] = [{"role": "user", "content": "Never stop."}]
    if value is None:
        body["max_tokens"] = None
    answer = good(fake.post(CHATS, body)).json()
    assert answer["usage"]["completion_tokens"] == CAP
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("fields", [{"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 50}])
def test_newer_name_of_the_limit(tiny: Service, fields: dict[str, Any]) -> None:
    """LIM-06: both names: the newer one holds."""
    whole = tiny.chat(SAID, **{"max_tokens": None, **fields})
    assert (whole.completion_tokens, whole.finish) == (5, "length")


@pytest.mark.parametrize("n_tokens", [1, 2, 5, 17])
def test_limit_is_exact_and_counted_in_tokens(tiny: Service, n_tokens: int) -> None:
    """LIM-07: in every way to ask."""
    for whole in (tiny.chat(SAID, max_tokens=n_tokens), tiny.complete("1 2 3 4", max_tokens=n_tokens)):
        assert (whole.completion_tokens, whole.finish) == (n_tokens, "length")
        assert whole.body["timings"]["predicted_n"] == n_tokens
    for stream in (
        tiny.chat_stream(SAID, max_tokens=n_tokens, **USAGE),
        tiny.complete_stream("1 2 3 4", max_tokens=n_tokens, **USAGE),
    ):
        assert stream.usage is not None
        assert (stream.usage["completion_tokens"], stream.finish) == (n_tokens, "length")


def test_shorter_answer_is_the_beginning_of_a_longer_one(tiny: Service) -> None:
    """LIM-07"""
    longest = tiny.chat(SAID, max_tokens=20).text
    for n_tokens in (1, 3, 10):
        shorter = tiny.chat(SAID, max_tokens=n_tokens).text
        assert shorter
        assert longest.startswith(shorter)
