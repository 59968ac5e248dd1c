"""What the OpenAI SDK gets from the service when all goes well.

Runs under two major versions of the SDK (test_older_sdk.py): it uses what both have.
"""

import asyncio
import base64
import os
from array import array
from importlib import metadata
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.contract.conftest import SDK_VERSION, Service
from tests.stack import CHAT, EMBED

COUNT: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Count from 1 to 40 in digits, separated by single spaces."}
]
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
GREEDY: dict[str, Any] = {"model": CHAT, "temperature": 0, "seed": 7}
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def counted(client: OpenAI, **fields: Any) -> str:
    answer = client.chat.completions.create(messages=COUNT, **{**GREEDY, "max_tokens": 24, **fields})
    text = answer.choices[0].message.content
    assert text
    return str(text)


def test_this_is_the_version_that_is_to_be_tested() -> None:
    assert openai.__version__ == os.environ.get(SDK_VERSION, metadata.version("openai"))
    assert openai.__version__.startswith("2." if SDK_VERSION in os.environ else "3.")


# -- models ----------------------------------------------------------------------------------------


def test_models(client: OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert models.keys() >= {CHAT, EMBED}
    for name in (CHAT, EMBED):
        assert client.models.retrieve(name).id == name
        assert models[name].created > 0
        assert models[name].owned_by


@pytest.mark.parametrize("suffix", ["", "/"])
def test_base_url_with_and_without_a_slash_at_its_end(live_service: Service, suffix: str) -> None:
    with OpenAI(base_url=live_service.base_url + suffix, api_key=live_service.key, max_retries=0) as client:
        assert client.models.retrieve(CHAT).object == "model"


# -- chat ------------------------------------------------------------------------------------------


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=COUNT, max_tokens=12, **GREEDY)
    assert (answer.object, answer.model) == ("chat.completion", CHAT)
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert choice.message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_stream_is_the_answer_in_pieces(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(messages=COUNT, max_tokens=24, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == counted(client)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        messages=COUNT, max_tokens=5, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_stream_helper_puts_the_answer_together(client: OpenAI) -> None:
    """It takes an answer that ended by `length` for a failure, so a stop text ends this one."""
    whole = counted(client)
    deltas: list[str] = []
    with client.chat.completions.stream(
        messages=COUNT, max_tokens=24, stop=whole[12:15], stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        for event in stream:
            if event.type == "content.delta":
                deltas.append(event.delta)
        answer = stream.get_final_completion()
    assert "".join(deltas) == answer.choices[0].message.content == whole[: whole.index(whole[12:15])]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


async def test_async_client(async_client: AsyncOpenAI) -> None:
    answer = await async_client.chat.completions.create(messages=COUNT, max_tokens=12, **GREEDY)
    stream = await async_client.chat.completions.create(messages=COUNT, max_tokens=12, stream=True, **GREEDY)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == answer.choices[0].message.content


async def test_async_requests_at_once_get_their_own_answers(async_client: AsyncOpenAI) -> None:
    def ask(word: str) -> Any:
        said: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"Say {word}."}]
        return async_client.chat.completions.create(messages=said, max_tokens=6, **GREEDY)

    words = ["apple", "boat", "cloud", "door"]
    alone = [(await ask(word)).choices[0].message.content for word in words]
    together = await asyncio.gather(*map(ask, words))
    assert [answer.choices[0].message.content for answer in together] == alone
    assert len({answer.id for answer in together}) == len(words)


def test_stop_texts(client: OpenAI) -> None:
    whole = counted(client)
    stops = [whole[12:15], whole[6:9]]
    answer = client.chat.completions.create(messages=COUNT, max_tokens=24, stop=stops, **GREEDY)
    assert answer.choices[0].message.content == whole[: min(whole.index(stop) for stop in stops)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_seed_repeats_a_text_that_chance_made(client: OpenAI) -> None:
    first, second, other = (counted(client, temperature=1.5, seed=seed) for seed in (3, 3, 4))
    assert first == second != other


def test_max_completion_tokens(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=COUNT, max_completion_tokens=3, **GREEDY)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (3, "length")


def test_system_and_developer_are_one_role(client: OpenAI) -> None:
    def told(role: str) -> Any:
        rule: Any = {"role": role, "content": "You are a sailor. Talk of the sea."}
        return client.chat.completions.create(messages=[rule, *HELLO], max_tokens=16, **GREEDY)

    system, developer = told("system"), told("developer")
    assert system.choices[0].message.content == developer.choices[0].message.content
    assert system.usage.prompt_tokens == developer.usage.prompt_tokens


def test_round_trip_of_a_tool_call(client: OpenAI) -> None:
    """The turn of the assistant goes back as the SDK's own object gives it, with `content` null."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    asked: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]
    message = openai.types.chat.ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [call]}
    )
    result = {"role": "tool", "tool_call_id": "call_1", "content": '{"temp_c": -3}'}
    bare = client.chat.completions.create(messages=asked, max_tokens=1, tools=[WEATHER], **GREEDY)
    for turn in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        history = [*asked, turn, result]
        answer = client.chat.completions.create(messages=history, max_tokens=8, tools=[WEATHER], **GREEDY)
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert bare.usage is not None
        assert answer.usage.prompt_tokens > bare.usage.prompt_tokens + 20


def test_an_answer_goes_back_into_the_conversation(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=HELLO, max_tokens=6, **GREEDY)
    history: list[Any] = [*HELLO, answer.choices[0].message, {"role": "user", "content": "Again."}]
    assert client.chat.completions.create(messages=history, max_tokens=6, **GREEDY).choices[0].message.content


def test_headers_of_a_raw_response(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(messages=HELLO, max_tokens=2, **GREEDY)
    answer = raw.parse()
    assert raw.headers["x-request-id"] == answer.id == answer._request_id
    assert raw.headers["content-type"] == "application/json"
    assert float(raw.headers["x-queue-wait-ms"]) >= 0


def test_lines_of_a_streaming_response(client: OpenAI) -> None:
    create = client.chat.completions.with_streaming_response.create
    with create(messages=HELLO, max_tokens=2, stream=True, **GREEDY) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"].startswith("chatcmpl-")
        assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"


# -- completions -----------------------------------------------------------------------------------


def test_text_completion(client: OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "prompt": "Once upon a", "max_tokens": 8}
    answer = client.completions.create(**asked)
    text = answer.choices[0].text
    assert text.startswith(" ")
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)) == text
    echoed = client.completions.create(**asked, echo=True)
    assert echoed.choices[0].text == "Once upon a" + text
    assert echoed.usage is not None
    assert echoed.usage.completion_tokens == 8


# -- embeddings ------------------------------------------------------------------------------------


def test_embeddings_as_the_sdk_asks_by_default_are_the_floats(client: OpenAI) -> None:
    """By itself the SDK asks for base64 and decodes it."""
    texts = ["The cat sat on the mat.", "a", "Der Hund schläft."]
    default = client.embeddings.create(model=EMBED, input=texts)
    floats = client.embeddings.create(model=EMBED, input=texts, encoding_format="float")
    encoded = client.embeddings.create(model=EMBED, input=texts, encoding_format="base64")
    assert [item.index for item in default.data] == [0, 1, 2]
    for index, item in enumerate(default.data):
        assert len(item.embedding) == 384
        assert item.embedding == pytest.approx(floats.data[index].embedding, abs=1e-6)
        given: Any = encoded.data[index].embedding
        if isinstance(given, str):
            given = list(array("f", base64.b64decode(given)))
        assert given == pytest.approx(item.embedding, abs=1e-6)
    assert default.usage.prompt_tokens == default.usage.total_tokens > len(texts)


async def test_async_embeddings(async_client: AsyncOpenAI) -> None:
    answer = await async_client.embeddings.create(model=EMBED, input="hello")
    assert sum(value * value for value in answer.data[0].embedding) == pytest.approx(1.0, abs=1e-3)
