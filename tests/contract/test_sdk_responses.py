"""/v1/responses as the OpenAI SDK sees it: answers of the real model.

Runs under two major versions of the SDK (test_older_sdk.py): it uses what both have.
"""

import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.stack import CHAT, EMBED, N_CTX

GREEDY: dict[str, Any] = {"model": CHAT, "temperature": 0, "extra_body": {"seed": 7}}
COUNT = "Count from 1 to 40 in digits, separated by single spaces."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    name: Literal["Oslo", "Rome"]
    is_capital: bool


class GetWeather(BaseModel):
    """Weather of a city"""

    city: Literal["Oslo", "Rome"]


def counted(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(input=COUNT, **{**GREEDY, "max_output_tokens": 24, **fields})


# -- text ------------------------------------------------------------------------------------------


def test_create(client: OpenAI) -> None:
    answer = counted(client, metadata={"topic": "demo"})
    assert (answer.object, answer.model, answer.status) == ("response", CHAT, "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text
    assert answer.usage.output_tokens == 24
    assert answer.usage.total_tokens == answer.usage.input_tokens + 24
    assert answer.usage.input_tokens_details.cached_tokens >= 0
    assert (answer.error, answer.metadata, answer.max_output_tokens) == (None, {"topic": "demo"}, 24)
    assert answer._request_id == answer.id


def test_the_answer_is_that_of_chat(client: OpenAI) -> None:
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": COUNT}]
    chat = client.chat.completions.create(model=CHAT, messages=messages, max_tokens=24, temperature=0)
    answer = counted(client, instructions="Be brief.")
    assert answer.output_text == chat.choices[0].message.content
    assert chat.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    "items",
    [
        [{"role": "user", "content": COUNT}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": COUNT}]}],
    ],
)
def test_items_say_the_same_as_a_string(client: OpenAI, items: Any) -> None:
    answer = client.responses.create(input=items, max_output_tokens=24, **GREEDY)
    assert answer.output_text == counted(client).output_text


def test_output_goes_back_into_the_conversation(client: OpenAI) -> None:
    first = counted(client)
    history: Any = [{"role": "user", "content": COUNT}, *first.output, {"role": "user", "content": "Again."}]
    again = client.responses.create(input=history, max_output_tokens=6, **GREEDY)
    assert again.output_text
    assert again.usage is not None
    assert again.usage.input_tokens > first.usage.input_tokens + 24


def test_stream_of_events(client: OpenAI) -> None:
    events: list[Any] = list(counted(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.incomplete"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == counted(client).output_text


def test_stream_helper_puts_the_text_together(client: OpenAI) -> None:
    """It has nothing to give for an answer that ended at the limit, so a stop text ends this one."""
    whole = counted(client).output_text
    stop = whole[12:15]
    said: list[str] = []
    with client.responses.stream(
        input=COUNT, max_output_tokens=24, model=CHAT, temperature=0, extra_body={"stop": stop}
    ) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                said.append(event.delta)
                assert event.snapshot == "".join(said)
        answer = stream.get_final_response()
    assert answer.output_text == "".join(said) == whole[: whole.index(stop)]
    assert answer.status == "completed"


def test_log_probabilities(client: OpenAI) -> None:
    answer = counted(client, max_output_tokens=3, include=["message.output_text.logprobs"], top_logprobs=2)
    [part] = answer.output[0].content
    assert "".join(token.token for token in part.logprobs) == answer.output_text
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in part.logprobs)


def test_input_tokens_are_those_of_the_answer(client: OpenAI) -> None:
    fields: Any = {"input": COUNT, "instructions": "Be brief.", "tools": [WEATHER]}
    count = client.responses.input_tokens.count(model=CHAT, **fields)
    answer = client.responses.create(model=CHAT, max_output_tokens=1, **fields)
    assert answer.usage is not None
    assert count.input_tokens == answer.usage.input_tokens > 30


# -- structured output -----------------------------------------------------------------------------


def test_parse(client: OpenAI) -> None:
    answer = client.responses.parse(input="Tell me of Oslo.", text_format=City, max_output_tokens=60, **GREEDY)
    assert isinstance(answer.output_parsed, City)
    assert answer.status == "completed"


def test_parse_in_a_stream(client: OpenAI) -> None:
    with client.responses.stream(
        input="Tell me of Rome.", text_format=City, max_output_tokens=60, model=CHAT, temperature=0
    ) as stream:
        done = [event for event in stream if event.type == "response.output_text.done"]
        answer = stream.get_final_response()
    assert isinstance(answer.output_parsed, City)
    assert [event.parsed for event in done] == [answer.output_parsed]


# -- tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_round_trip_of_a_tool_call(client: OpenAI, choice: Any) -> None:
    history: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    fields: Any = {"tools": [WEATHER], "parallel_tool_calls": False}
    asked = client.responses.create(input=history, tool_choice=choice, max_output_tokens=60, **fields, **GREEDY)
    [call] = asked.output
    assert call.type == "function_call"
    assert (call.name, call.status) == ("get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    assert asked.tool_choice == choice or getattr(asked.tool_choice, "name", None) == "get_weather"
    history += [call, {"type": "function_call_output", "call_id": call.call_id, "output": '{"temp_c": -3}'}]
    answer = client.responses.create(input=history, max_output_tokens=12, tool_choice="none", **fields, **GREEDY)
    assert answer.output_text
    assert [item.type for item in answer.output] == ["message"]


def test_tool_call_in_a_stream(client: OpenAI) -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"]
    flat: Any = {"type": "function", **tool}
    arguments: list[str] = []
    with client.responses.stream(
        input="What is the weather in Rome?",
        tools=[flat],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=60,
        model=CHAT,
        temperature=0,
    ) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                arguments.append(event.delta)
                assert event.snapshot == "".join(arguments)
        answer = stream.get_final_response()
    [call] = answer.output
    assert call.type == "function_call"
    assert call.arguments == "".join(arguments)
    assert GetWeather.model_validate(call.parsed_arguments)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"temperature": 3}, "temperature"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    ],
)
def test_what_is_not_served_is_named(client: OpenAI, fields: Any, param: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": CHAT, "input": "hi", "stream": stream, **fields})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_longer_than_the_window(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=CHAT, input="word " * 2 * N_CTX, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


def test_models_that_do_not_answer(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="no-such-model", input="hi")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as other:
        client.responses.create(model=EMBED, input="hi")
    assert other.value.param == "model"


def test_no_response_is_kept(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(counted(client, max_output_tokens=1).id)
    assert caught.value.code == "response_not_found"


def test_failure_of_the_engine(slow_client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        slow_client.responses.create(model=CHAT, input="FAKE-ERROR")
    assert caught.value.code == "internal_error"


def test_failure_within_a_stream_is_raised(slow_client: OpenAI) -> None:
    kinds: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        kinds += [event.type for event in slow_client.responses.create(model=CHAT, input="FAKE-ERROR", stream=True)]
    assert caught.value.code == "internal_error"
