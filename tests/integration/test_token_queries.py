"""Counting and looking at tokens on running services, also while they generate."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.chat_client import FOREVER, chat, wait_idle
from tests.stack import CHAT, EMBED, Stack
from tests.support import wait_until

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many tokens is this? 🙂"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "description": "Looks a word up.", "parameters": {"type": "object"}},
    }
]


@pytest.fixture
def service(live: Stack) -> Iterator[httpx.Client]:
    wait_idle(live)
    with live.client() as client:
        yield client
    wait_idle(live)


@pytest.fixture
def slow(slow_live: Stack) -> Iterator[Stack]:
    wait_idle(slow_live)
    yield slow_live
    wait_idle(slow_live)


def ask(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("text", ["Hello, world!", "  two  blanks\n", "café 🙂 мир", "<|im_start|>user", ""])
@pytest.mark.parametrize("parse_special", [True, False])
def test_text_comes_back_from_its_tokens(service: httpx.Client, text: str, parse_special: bool) -> None:
    tokens = ask(service, "/tokenize", content=text, parse_special=parse_special)["tokens"]

    assert all(isinstance(token, int) for token in tokens)
    assert ask(service, "/v1/detokenize", tokens=tokens) == {"content": text}


def test_pieces_join_to_the_text(service: httpx.Client) -> None:
    text = "naïve 🙂🚀"
    tokens = ask(service, "/v1/tokenize", content=text, with_pieces=True, model=CHAT)["tokens"]
    pieces = [token["piece"] for token in tokens]

    assert any(isinstance(piece, list) for piece in pieces)  # an emoji takes several tokens
    assert b"".join(bytes(p) if isinstance(p, list) else p.encode() for p in pieces).decode() == text
    assert [token["id"] for token in tokens] == ask(service, "/tokenize", content=text)["tokens"]


def test_a_control_token_s_spelling_is_one_token_or_plain_text(service: httpx.Client) -> None:
    special = ask(service, "/tokenize", content="<|im_start|>", with_pieces=True)["tokens"]
    plain = ask(service, "/tokenize", content="<|im_start|>", parse_special=False)["tokens"]

    assert [token["piece"] for token in special] == ["<|im_start|>"]
    assert len(plain) > 1


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}], ids=["plain", "tools"])
def test_the_count_is_what_a_generation_bills(service: httpx.Client, more: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, **more}
    counted = ask(service, "/v1/chat/completions/input_tokens", model=CHAT, **body)
    answer = ask(service, "/v1/chat/completions", model=CHAT, max_tokens=1, **body)
    prompt = ask(service, "/apply-template", **body)["prompt"]

    assert counted == {"object": "response.input_tokens", "input_tokens": answer["usage"]["prompt_tokens"]}
    assert "How many tokens is this? 🙂" in prompt
    assert ("look_up" in prompt) is bool(more)
    assert len(ask(service, "/tokenize", content=prompt)["tokens"]) == counted["input_tokens"]


def test_a_prompt_longer_than_the_window_is_counted(service: httpx.Client) -> None:
    messages = [{"role": "user", "content": "word " * 20_000}]

    assert ask(service, "/chat/completions/input_tokens", messages=messages)["input_tokens"] > 20_000


def test_a_token_that_the_model_lacks_is_named(service: httpx.Client) -> None:
    response = service.post("/detokenize", json={"tokens": [1, 2**31 - 1]})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tokens[1]"


def test_the_embedding_model_s_tokens_are_refused_clearly(service: httpx.Client) -> None:
    response = service.post("/tokenize", json={"content": "a", "model": EMBED})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "hello there"}),
        ("/apply-template", {"messages": MESSAGES}),
        ("/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
    ],
)
def test_an_answer_comes_while_the_only_slot_is_taken(slow: Stack, path: str, body: dict[str, Any]) -> None:
    with slow.client() as client, chat(slow, FOREVER) as stream:
        stream.wait_text()
        before = stream.text
        ask(client, path, **body)

        assert not stream.is_over()
        wait_until(lambda: stream.text != before, "the stream goes on")


def test_a_real_model_answers_while_it_generates(live: Stack, service: httpx.Client) -> None:
    with chat(live, FOREVER, max_tokens=400) as stream:
        stream.wait_text()
        ask(service, "/tokenize", content="hello there")

        assert not stream.is_over()


def test_without_a_worker_the_answer_is_a_503(fake_live: Stack) -> None:
    wait_idle(fake_live)
    fake_live.stop_worker()
    try:
        wait_until(lambda: fake_live.health()["status"] != "ok", "the worker is missed")
        with fake_live.client() as client:
            response = client.post("/tokenize", json={"content": "a"})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_loading"
        assert int(response.headers["retry-after"]) >= 1
    finally:
        fake_live.start_worker()
        fake_live.wait_ready()
