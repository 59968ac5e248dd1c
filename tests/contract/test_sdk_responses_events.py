"""/v1/responses as the OpenAI SDK sees it: what the demo model never says, scripted as frames.

Runs under two major versions of the SDK (test_older_sdk.py): it uses what both have.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from api.job_types import RequestFailed, ServerBusy
from tasks.contracts import ErrorCode, FinishReason
from tests.integration.http_server import Server, running_server
from tests.unit.fake_jobs import CHAT, Step, call, delta, finished, progress, reasoning, scored

TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True},
    {"type": "function", "name": "clock", "parameters": {"type": "object"}, "strict": False},
]
THOUGHTFUL: list[Step] = [
    progress(1, 9),
    reasoning("Let me "),
    reasoning("see."),
    delta("One "),
    delta("moment."),
    call(0, "weather", '{"city":'),
    call(0, arguments='"Oslo"}'),
    call(1, "clock", "{}"),
    finished(FinishReason.TOOL_CALLS),
]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with running_server() as server:
        yield server


@pytest.fixture
async def sdk(server: Server) -> AsyncIterator[AsyncOpenAI]:
    base = f"http://127.0.0.1:{server.port}/v1"
    async with AsyncOpenAI(base_url=base, api_key="x", timeout=10.0, max_retries=0) as client:
        yield client


async def test_reasoning_text_and_calls(server: Server, sdk: AsyncOpenAI) -> None:
    server.jobs.running = list(THOUGHTFUL)
    answer = await sdk.responses.create(model=CHAT, input="hi", tools=TOOLS)
    thought, message, weather, clock = answer.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "Let me see."
    assert message.type == "message"
    assert answer.output_text == "One moment."
    assert weather.type == clock.type == "function_call"
    assert (weather.name, weather.arguments, clock.name) == ("weather", '{"city":"Oslo"}', "clock")
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == 1


async def test_stream_helper_takes_every_event(server: Server, sdk: AsyncOpenAI) -> None:
    server.jobs.running = list(THOUGHTFUL)
    snapshots: dict[str, str] = {}
    async with sdk.responses.stream(model=CHAT, input="hi", tools=TOOLS) as stream:
        async for event in stream:
            if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                snapshots[event.item_id] = event.snapshot
        answer = await stream.get_final_response()
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert list(snapshots.values()) == ["One moment.", '{"city":"Oslo"}', "{}"]
    output: list[Any] = answer.output
    assert list(snapshots) == [item.id for item in output[1:]]
    weather = output[2]
    assert weather.parsed_arguments == {"city": "Oslo"}


async def test_output_goes_back_as_the_sdk_has_it(server: Server, sdk: AsyncOpenAI) -> None:
    server.jobs.running = list(THOUGHTFUL)
    answer = await sdk.responses.create(model=CHAT, input="hi", tools=TOOLS)
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in answer.output
        if item.type == "function_call"
    ]
    for turns in (answer.output, [item.model_dump() for item in answer.output]):
        history: Any = [{"role": "user", "content": "hi"}, *turns, *results]
        await sdk.responses.create(model=CHAT, input=history, tools=TOOLS)
        _, said, *told = server.jobs.submitted[-1].messages or []
        assert (said["content"], said["reasoning_content"]) == ("One moment.", "Let me see.")
        assert [turn["id"] for turn in said["tool_calls"]] == [turn["tool_call_id"] for turn in told]


async def test_log_probabilities_in_a_stream(server: Server, sdk: AsyncOpenAI) -> None:
    server.jobs.running = [scored(("Hel", -0.5), ("lo", -1.0)), finished()]
    async with sdk.responses.stream(
        model=CHAT, input="hi", include=["message.output_text.logprobs"], top_logprobs=2
    ) as stream:
        tokens = [
            token.token
            async for event in stream
            if event.type == "response.output_text.delta"
            for token in event.logprobs
        ]
    assert tokens == ["Hel", "lo"]


async def test_an_answer_cut_at_the_limit(server: Server, sdk: AsyncOpenAI) -> None:
    server.jobs.running = [reasoning("Hmm"), finished(FinishReason.LENGTH)]
    stream = await sdk.responses.create(model=CHAT, input="hi", stream=True, max_output_tokens=1)
    last = [event async for event in stream][-1]
    assert last.type == "response.incomplete"
    assert [item.type for item in last.response.output] == ["reasoning"]


async def test_failure_within_a_stream(server: Server, sdk: AsyncOpenAI) -> None:
    server.jobs.running = [delta("x"), RequestFailed(ErrorCode.ENGINE_LOST, "The engine died.")]
    kinds = []
    with pytest.raises(openai.APIError) as caught:
        async for event in await sdk.responses.create(model=CHAT, input="hi", stream=True):
            kinds.append(event.type)
    assert kinds[-1] == "response.failed"
    assert (caught.value.code, caught.value.message) == ("worker_lost", "The engine died.")


@pytest.mark.parametrize("stream", [False, True])
async def test_busy_server(server: Server, sdk: AsyncOpenAI, stream: bool) -> None:
    server.jobs.waiting = [ServerBusy("The server is busy.", 12.3)]
    with pytest.raises(openai.InternalServerError) as caught:
        await sdk.responses.create(model=CHAT, input="hi", stream=stream)
    assert (caught.value.status_code, caught.value.code) == (503, "server_busy")
    assert caught.value.response.headers["retry-after"] == "13"


async def test_a_stream_that_is_left_cancels(server: Server, sdk: AsyncOpenAI) -> None:
    server.jobs.running = [delta("x"), asyncio.Event()]
    stream = await sdk.responses.create(model=CHAT, input="hi", stream=True)
    await stream.close()
    await server.jobs.was_cancelled.wait()
    assert server.jobs.cancelled == [server.jobs.submitted[0].id]
