"""Reported bugs of event streams, on the whole service."""

import itertools
import time
from typing import Any

import pytest

from tests.service_calls import CHATS, COMPLETIONS, LONG, Service, Streamed, chat_body, error_of
from tests.stack import CHAT, N_CTX
from tests.support import wait_until

USAGE = {"stream_options": {"include_usage": True}}
COUNT = "Count from 1 to 40 in digits, separated by single spaces."

#: how a stream may go: what is said, its fields, how it ends
STREAMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "its own end": ("Say OK.", {"max_tokens": 200}, "stop"),
    "max_tokens": ("Never stop.", {"max_tokens": 100}, "length"),
    "one token": ("Never stop.", {"max_tokens": 1}, "length"),
    "stop text": ("Repeat exactly: one two three four", {"stop": ["three"]}, "stop"),
    "stop text at once": ("Repeat exactly: one two", {"stop": "one"}, "stop"),
    "blanks": ("Repeat exactly:  \n\n \t x", {}, "stop"),
}


def check_chunks(stream: Streamed, finish: str, has_usage: bool) -> None:
    """All that holds for every stream that ends well."""
    assert stream.is_done
    assert stream.error is None
    chunks, choices = stream.chunks, stream.choices
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert stream.headers["x-request-id"] == chunks[0]["id"]
    assert {choice["index"] for choice in choices} == {0}
    assert not any("message" in choice for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [finish]
    for chunk in chunks[:-1]:
        assert len(chunk["choices"]) == 1
        assert chunk.get("usage") is None
        assert ("usage" in chunk) is has_usage
    assert (chunks[-1]["choices"] == []) is has_usage
    if has_usage:
        usage = chunks[-1]["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert min(usage["prompt_tokens"], usage["completion_tokens"]) > 0
    else:
        assert "usage" not in chunks[-1]


@pytest.mark.parametrize("has_usage", [False, True], ids=["SSE-05", "SSE-06"])
@pytest.mark.parametrize("name", STREAMS, ids=lambda name: f"SSE-01 SSE-03 SSE-04 {name}")
def test_chunks_of_a_chat(fake: Service, name: str, has_usage: bool) -> None:
    said, fields, finish = STREAMS[name]
    stream = fake.chat_stream(said, **fields, **(USAGE if has_usage else {}))
    check_chunks(stream, finish, has_usage)
    roles = [choice["delta"].get("role") for choice in stream.choices]
    assert roles == ["assistant"] + [None] * (len(roles) - 1)
    assert stream.text == fake.chat(said, **fields).text


@pytest.mark.parametrize("has_usage", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_chunks_of_a_text_completion(fake: Service, echo: bool, has_usage: bool) -> None:
    """SSE-01, SSE-04, SSE-05, SSE-06"""
    stream = fake.complete_stream("Never stop.", echo=echo, **(USAGE if has_usage else {}))
    check_chunks(stream, "length", has_usage)
    assert stream.text == fake.complete("Never stop.", echo=echo).text


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}, {"other": 1}])
def test_usage_comes_only_when_asked_for(fake: Service, options: Any) -> None:
    """SSE-05"""
    check_chunks(fake.chat_stream("Say OK.", stream_options=options, max_tokens=100), "stop", has_usage=False)


def test_chunks_of_a_real_model(real: Service) -> None:
    """SSE-01, SSE-03, SSE-04, SSE-06"""
    stream = real.chat_stream(COUNT, max_tokens=8, **USAGE)
    check_chunks(stream, "length", has_usage=True)
    assert len(stream.chunks) > 4
    said = "What is the capital of France? Answer in one word."
    check_chunks(real.chat_stream(said, max_tokens=60), "stop", has_usage=False)


def test_one_created_time_for_a_stream_of_more_than_a_second(slow: Service) -> None:
    """SSE-01"""
    stream = slow.chat_stream("Never stop.", max_tokens=25)
    check_chunks(stream, "length", has_usage=False)
    assert stream.chunks[-1]["timings"]["predicted_ms"] > 1000
    again = slow.chat_stream("Never stop.", max_tokens=1)
    assert again.chunks[0]["id"] != stream.chunks[0]["id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [(CHATS, chat_body(LONG), "messages"), (COMPLETIONS, {"model": CHAT, "prompt": LONG}, "prompt")],
    ids=["chat", "completions"],
)
def test_too_long_prompt_is_a_status_and_no_stream(
    real: Service, path: str, body: dict[str, Any], param: str, stream: bool
) -> None:
    """SSE-07"""
    error = error_of(real.post(path, body | {"stream": stream}), 400, "context_length_exceeded")
    assert error["param"] == param
    assert str(N_CTX) in error["message"]


@pytest.mark.parametrize(
    ("trap", "code"),
    [
        pytest.param("FAKE-ERROR", "internal_error", id="SSE-08 a decode that fails"),
        pytest.param("FAKE-CRASH", "worker_lost", id="SSE-08 an engine that dies"),
    ],
)
def test_failure_within_a_stream_is_its_last_frame(slow: Service, trap: str, code: str) -> None:
    """No end is faked, for whoever takes a cut-off text for a whole one."""
    n_loaded = slow.stack.log_text().count("models ready")
    stream = slow.chat_stream(f"{trap} please")
    assert 1 <= len(stream.pieces) <= 3  # the third may die with the engine
    assert stream.error is not None
    assert stream.error["code"] == code
    assert list(stream.chunks[-1]) == ["error"]
    assert stream.finish is None
    assert "[DONE]" not in stream.raw
    if trap == "FAKE-CRASH":
        wait_until(lambda: slow.stack.log_text().count("models ready") > n_loaded, "the engine is back", 60.0)
        wait_until(lambda: slow.stack.health()["status"] == "ok", "the API knows it")
    slow.assert_alive()


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("character", list("\u2028\u2029\u0085\u000b\u000c\u001c\u001d\u001e\r"), ids=ascii)
def test_line_ends_of_unicode_do_not_cut_a_frame(fake: Service, route: str, character: str) -> None:
    """SSE-11: the frames are the same to clients that split lines by Unicode's rules."""
    said = f"Repeat exactly: A{character}B C{character}{character}D"
    stream = fake.chat_stream(said) if route == "chat" else fake.complete_stream(said)
    raw = stream.raw.rstrip("\n")
    assert raw.splitlines() == raw.split("\n")
    assert stream.text == said.removeprefix("Repeat exactly: ")


def test_long_prefill_is_not_silent(slow: Service) -> None:
    """SSE-12: data chunks that say nothing come before the first text, and the answer is whole."""
    arrivals: list[tuple[float, str]] = []
    body = chat_body("word " * 300, stream=True, max_tokens=2)
    with slow.client.stream("POST", CHATS, json=body) as response:
        arrivals = [(time.monotonic(), line) for line in response.iter_lines() if line]
    first_text = next(n for n, (_, line) in enumerate(arrivals) if '"content":"' in line and '"content":""' not in line)
    silent = [line for _, line in arrivals[:first_text] if '"delta":{}' in line]
    assert silent
    gaps = [late - early for (early, _), (late, _) in itertools.pairwise(arrivals)]
    assert max(gaps) < 1.9  # the prefill takes 2 s
    assert arrivals[-1][1] == "data: [DONE]"


def test_heartbeats_are_not_in_the_text(slow: Service) -> None:
    """SSE-12"""
    long = [{"role": "system", "content": "word " * 300}, {"role": "user", "content": "Repeat exactly: one two"}]
    stream = slow.chat_stream(long)
    check_chunks(stream, "stop", has_usage=False)
    assert stream.text == "one two"
