"""How the OpenAI SDK sees refusals and failures, when it tries again, and what it leaves behind.

Runs under two major versions of the SDK (test_older_sdk.py): it uses what both have.
"""

import time
from typing import Any

import openai
import pytest
from openai import APIError, APIStatusError, APITimeoutError, OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

from tests.contract.conftest import Service
from tests.stack import CHAT, EMBED, N_CTX

ENDLESS: Any = [{"role": "user", "content": "Never stop."}]
HELLO: Any = [{"role": "user", "content": "Say hello."}]


def hold(client: OpenAI, n_tokens: int) -> Stream[ChatCompletionChunk]:
    """A stream that has the only slot: 20 tokens a second."""
    stream = client.chat.completions.create(model=CHAT, messages=ENDLESS, max_tokens=n_tokens, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            return stream
    raise AssertionError("the stream ended without a token")


def hello(client: OpenAI, **fields: Any) -> str:
    answer = client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=2, **fields)
    return answer.choices[0].message.content or ""


# -- errors of the client's making -----------------------------------------------------------------


def test_wrong_key(live_service: Service) -> None:
    with (
        OpenAI(base_url=live_service.base_url, api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=HELLO, stream=stream)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert CHAT in caught.value.message


def test_model_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no/such")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_longer_than_the_window(client: OpenAI, stream: bool) -> None:
    long: Any = [{"role": "user", "content": "word " * 2 * N_CTX}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=CHAT, messages=long, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert str(N_CTX) in caught.value.message


@pytest.mark.parametrize(
    ("param", "value"),
    [("temperature", 3), ("max_tokens", 0), ("n", 99), ("top_p", "high"), ("stop", [1]), ("messages", [])],
)
def test_bad_field_is_named(client: OpenAI, param: str, value: Any) -> None:
    fields: dict[str, Any] = {"model": CHAT, "messages": HELLO, param: value}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_token_ids_as_embedding_input(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=EMBED, input=[[2028, 374, 264]])
    assert caught.value.param == "input"


def test_model_of_the_other_kind(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=CHAT, input="x")
    assert caught.value.param == "model"


# -- failures of the server ------------------------------------------------------------------------


def test_failure_of_the_engine(slow_client: OpenAI) -> None:
    said: Any = [{"role": "user", "content": "FAKE-ERROR"}]
    with pytest.raises(openai.InternalServerError) as caught:
        slow_client.chat.completions.create(model=CHAT, messages=said)
    assert (caught.value.status_code, caught.value.code) == (500, "internal_error")
    assert caught.value.request_id


def test_failure_within_a_stream_is_raised(slow_client: OpenAI) -> None:
    said: Any = [{"role": "user", "content": "FAKE-ERROR"}]
    got: list[str] = []
    with pytest.raises(APIError) as caught:
        for chunk in slow_client.chat.completions.create(model=CHAT, messages=said, stream=True):
            got += [chunk.choices[0].delta.content or ""]
            assert chunk.choices[0].finish_reason is None
    assert len([text for text in got if text]) == 3
    assert caught.value.code == "internal_error"


# -- a busy server ---------------------------------------------------------------------------------


def test_busy_server_says_when_to_come_back(slow_client: OpenAI) -> None:
    with hold(slow_client, 1000), pytest.raises(APIStatusError) as caught:
        hello(slow_client)
    assert isinstance(caught.value, openai.InternalServerError)
    assert (caught.value.status_code, caught.value.code) == (503, "server_busy")
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_retry_comes_when_the_server_said(slow_service: Service) -> None:
    """The slot is taken for 2.5 s, a request waits 2 s, and the SDK's own first pause is at most half a second."""
    with slow_service.client(max_retries=3) as client, hold(client, 50):
        started_s = time.monotonic()
        raw = client.chat.completions.with_raw_response.create(model=CHAT, messages=HELLO, max_tokens=2)
        took_s = time.monotonic() - started_s
    assert raw.parse().choices[0].message.content
    assert raw.retries_taken >= 1
    assert took_s >= 2.0 + 1.0


def test_client_hears_the_refusal_before_its_own_patience_ends(slow_service: Service) -> None:
    """It waits 1.6 s, less than the server would let it wait, and says so in a header."""
    with (
        slow_service.client() as holder,
        hold(holder, 1000),
        slow_service.client(timeout_s=1.6) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        hello(client)
    assert caught.value.code == "server_busy"


# -- clients that leave ----------------------------------------------------------------------------


def test_stream_closed_early_frees_the_slot(slow_client: OpenAI) -> None:
    """The whole would take 50 s, and the next request waits 2 s at most."""
    hold(slow_client, 1000).close()
    assert hello(slow_client)


def test_stream_left_by_its_context_frees_the_slot(slow_client: OpenAI) -> None:
    with slow_client.chat.completions.create(model=CHAT, messages=ENDLESS, max_tokens=1000, stream=True) as stream:
        next(iter(stream))
    assert hello(slow_client)


def test_request_given_up_for_its_timeout_frees_the_slot(slow_service: Service, slow_client: OpenAI) -> None:
    with slow_service.client(timeout_s=0.5) as hasty, pytest.raises(APITimeoutError):
        hasty.chat.completions.create(model=CHAT, messages=ENDLESS, max_tokens=1000)
    assert hello(slow_client)
