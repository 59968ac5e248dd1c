"""The OpenAI SDK's helpers for structured answers, tools, several choices and log probabilities.

Runs under two major versions of the SDK (test_older_sdk.py): it uses what both have.
"""

import json
from enum import Enum
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionToolParam
from pydantic import BaseModel, ConfigDict, Field

from tests.stack import CHAT

GREEDY: dict[str, Any] = {"model": CHAT, "temperature": 0, "seed": 7}
WARM: dict[str, Any] = {"model": CHAT, "temperature": 1.0, "seed": 7}
ASKED: Any = [{"role": "user", "content": "What time is it in Oslo? Use the tool."}]
PLAIN: Any = [{"role": "user", "content": "Invent a person."}]


class Colour(str, Enum):  # noqa: UP042 - as users of the SDK write it
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    """As the SDK's documentation has them: nested, a choice of words, a list, a value that may be null."""

    class Pet(BaseModel):
        kind: Literal["cat", "dog"]
        colour: Colour

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)
    pets: list[Pet] = Field(max_length=2)
    nickname: str | None = Field(max_length=8)


class GetTime(BaseModel):
    """The time in a zone."""

    model_config = ConfigDict(title="get_time")
    zone: Literal["UTC", "CET"]
    with_seconds: bool


#: its name is the class's where none is given
TIME: ChatCompletionToolParam = openai.pydantic_function_tool(GetTime, name="get_time")
FORCED: Any = {"type": "function", "function": {"name": "get_time"}}


# -- structured answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_parse_gives_the_pydantic_model(client: OpenAI, seed: int) -> None:
    asked = {**WARM, "seed": seed, "max_tokens": 250}
    answer = client.chat.completions.parse(messages=PLAIN, response_format=Person, **asked)
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person)
    assert person.model_dump(mode="json") == json.loads(answer.choices[0].message.content or "")


def test_parse_gives_a_model_for_each_choice(client: OpenAI) -> None:
    answer = client.chat.completions.parse(messages=PLAIN, response_format=Person, n=2, max_tokens=250, **WARM)
    assert [type(choice.message.parsed) for choice in answer.choices] == [Person, Person]


def test_answer_cut_at_its_limit_is_the_sdks_error(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(messages=PLAIN, response_format=Person, max_tokens=5, **GREEDY)


def test_stream_helper_parses_at_the_end(client: OpenAI) -> None:
    asked = {"messages": PLAIN, "max_tokens": 250, **GREEDY}
    with client.chat.completions.stream(response_format=Person, **asked) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        answer = stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert "".join(deltas) == answer.choices[0].message.content
    assert len(deltas) > 1


async def test_async_parse(async_client: AsyncOpenAI) -> None:
    answer = await async_client.chat.completions.parse(messages=PLAIN, response_format=Person, max_tokens=250, **GREEDY)
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_plain_dicts_as_format(client: OpenAI) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "ok", "schema": schema}}
    answer = client.chat.completions.create(messages=PLAIN, response_format=wanted, max_tokens=100, **GREEDY)
    assert isinstance(json.loads(answer.choices[0].message.content or "")["ok"], bool)
    answer = client.chat.completions.create(
        messages=PLAIN, max_tokens=20, extra_body={"grammar": 'root ::= "yes" | "no"'}, **GREEDY
    )
    assert answer.choices[0].message.content in ("yes", "no")


# -- tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", FORCED])
def test_parse_gives_the_arguments_as_model(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.parse(
        messages=ASKED, tools=[TIME], tool_choice=choice, parallel_tool_calls=False, max_tokens=150, **WARM
    )
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls
    [call] = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetTime)
    assert call.id


def test_stream_helper_puts_a_call_together(client: OpenAI) -> None:
    asked = {"messages": ASKED, "max_tokens": 150, **GREEDY}
    options: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    deltas: list[str] = []
    done: list[Any] = []
    with client.chat.completions.stream(tools=[TIME], **options, **asked) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                deltas.append(event.arguments_delta)
            elif event.type == "tool_calls.function.arguments.done":
                done.append(event)
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls
    [call] = message.tool_calls
    assert "".join(deltas) == call.function.arguments
    assert isinstance(call.function.parsed_arguments, GetTime)
    assert [(event.name, event.index) for event in done] == [("get_time", 0)]
    assert message.content is None


def test_whole_loop_of_an_agent(client: OpenAI) -> None:
    """A call, its result, an answer: what comes back is sent as it came."""
    asked = client.chat.completions.create(
        messages=ASKED, tools=[TIME], tool_choice="required", parallel_tool_calls=False, max_tokens=150, **GREEDY
    )
    message = asked.choices[0].message
    assert message.tool_calls
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "12:30"} for call in message.tool_calls]
    history: Any = [*ASKED, message, *results]
    answer = client.chat.completions.create(messages=history, tools=[TIME], tool_choice="none", max_tokens=12, **GREEDY)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_raw_stream_of_a_call(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        messages=ASKED, tools=[TIME], tool_choice=FORCED, max_tokens=150, stream=True, **GREEDY
    )
    names, arguments, reasons = [], "", []
    for chunk in stream:
        for choice in chunk.choices:
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                assert call.function
                names += [call.function.name] if call.function.name else []
                arguments += call.function.arguments or ""
    assert names == ["get_time"]
    assert json.loads(arguments)["zone"] in ("UTC", "CET")
    assert reasons == ["tool_calls"]


# -- several choices, log probabilities ------------------------------------------------------------


def test_several_choices(client: OpenAI) -> None:
    asked: dict[str, Any] = {"messages": PLAIN, "n": 3, "max_tokens": 8, **WARM}
    answer = client.chat.completions.create(**asked)
    texts = [""] * 3
    for chunk in client.chat.completions.create(stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert [choice.message.content for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_logprobs_of_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=PLAIN, logprobs=True, top_logprobs=2, max_tokens=5, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(token.token for token in logprobs.content) == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in logprobs.content)


def test_stream_helper_gathers_logprobs(client: OpenAI) -> None:
    asked: dict[str, Any] = {"messages": PLAIN, "logprobs": True, "stop": [" "], "max_tokens": 30, **GREEDY}
    with client.chat.completions.stream(**asked) as stream:
        heard = [token.token for event in stream if event.type == "logprobs.content.delta" for token in event.content]
        answer = stream.get_final_completion()
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [token.token for token in logprobs.content or []] == heard
    assert heard


def test_text_completions(client: OpenAI) -> None:
    asked: dict[str, Any] = {"prompt": ["Once upon a", "The sky is"], "max_tokens": 4}
    answer = client.completions.create(n=2, logprobs=2, **asked, **WARM)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or []) == choice.text
        assert len(choice.logprobs.token_logprobs or []) == len(choice.logprobs.text_offset or [])
    best = client.completions.create(best_of=2, **asked, **WARM)
    assert len(best.choices) == 2
    assert best.usage is not None
    assert best.usage.completion_tokens > 8


def test_logit_bias(client: OpenAI) -> None:
    banned = client.chat.completions.create(messages=PLAIN, max_tokens=1, **GREEDY).choices[0].message.content
    assert banned
    other = client.chat.completions.create(messages=PLAIN, max_tokens=1, logit_bias={banned: -100}, **GREEDY)
    assert other.choices[0].message.content != banned


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 99}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"extra_body": {"grammar": "root ="}}, "grammar"),
        ({"extra_body": {"mirostat": 7}}, "mirostat"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_field_is_a_bad_request_that_names_it(client: OpenAI, fields: Any, param: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=PLAIN, stream=stream, **{**GREEDY, **fields})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "logprobs"),
        ({"prompt": ["a"] * 129}, "prompt"),
    ],
)
def test_bad_field_of_a_completion_is_named(client: OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{**GREEDY, "prompt": "x", **fields})
    assert caught.value.param == param
