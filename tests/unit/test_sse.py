"""The event stream of one generation, without HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from api.job_types import Event, RequestFailed
from api.protocol.answers import Generation
from api.protocol.chat import ChatAnswer
from api.sse import DONE, Beats, EventReader, frame, stream_answer
from tasks.contracts import ErrorCode, FinishReason, GenerateRequest
from tests.unit.fake_jobs import Step, call, delta, ended, finished, progress

REQUEST = GenerateRequest(id="chatcmpl-1", model="m", reply_to="a", created_ms=1_700_000_000_000)
QUICK = Beats(prefill_s=0.01, decode_s=0.01)
NEVER = Beats(prefill_s=60, decode_s=60)


async def play(steps: list[Step]) -> AsyncGenerator[Event]:
    for step in steps:
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, Exception):
            raise step
        else:
            yield step


def answer_of(include_usage: bool = False) -> ChatAnswer:
    return ChatAnswer(Generation(REQUEST, True, include_usage))


async def stream(steps: list[Step], beats: Beats = NEVER, include_usage: bool = False) -> list[bytes]:
    async with aclosing(EventReader(play(steps))) as reader:
        answer = answer_of(include_usage)
        return [data async for data in stream_answer(reader, answer, 5.0, REQUEST.id, beats)]


def chunks(frames: list[bytes]) -> list[dict[str, Any]]:
    lines = b"".join(frames).decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("character", list("\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\r\n"))
def test_no_line_end_of_unicode_is_left_in_a_frame(character: str) -> None:
    data = {"content": f"A{character}B", character: "é😀"}
    encoded = frame(data).decode()
    assert encoded.rstrip().splitlines() == encoded.rstrip().split("\n")
    assert json.loads(encoded.removeprefix("data: ")) == data


async def test_order_of_a_stream() -> None:
    frames = await stream([progress(4, 8), delta("Hel"), delta("lo"), finished()])
    assert frames[-1] == DONE
    got = chunks(frames)
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in got} == {
        ("chatcmpl-1", 1_700_000_000, "m", "chat.completion.chunk")
    }
    assert [c["choices"][0]["delta"] for c in got] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in got] == [None, None, None, "stop"]
    assert all("usage" not in c for c in got)
    assert got[-1]["timings"]["queue_ms"] == 5.0


async def test_usage_chunk_comes_last_and_only_when_asked_for() -> None:
    got = chunks(await stream([delta("x"), finished()], include_usage=True))
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["total_tokens"] == 13
    assert all(c["usage"] is None for c in got[:-1])


async def test_failure_after_the_head_is_the_last_frame() -> None:
    frames = await stream([delta("x"), RequestFailed(ErrorCode.WORKER_LOST, "The worker was lost.")])
    got = chunks(frames)
    assert got[-1] == {
        "error": {"message": "The worker was lost.", "type": "server_error", "param": None, "code": "worker_lost"}
    }
    assert not any(choice["finish_reason"] for c in got[:-1] for choice in c["choices"])
    assert DONE not in frames


@pytest.mark.parametrize("fault", [ValueError("/secret/path"), StopAsyncIteration()])
async def test_unexpected_failure_says_nothing_of_the_inside(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    frames = await stream([delta("x"), fault])
    assert chunks(frames)[-1]["error"]["code"] == "internal_error"
    assert b"secret" not in b"".join(frames)
    assert b"Error" not in b"".join(frames)
    assert DONE not in frames
    assert [record.__dict__["request_id"] for record in caplog.records] == ["chatcmpl-1"]


async def test_events_that_end_without_a_finish_are_an_error() -> None:
    frames = await stream([delta("x")])
    assert chunks(frames)[-1]["error"]["code"] == "internal_error"


async def heartbeats(steps: list[Step], release: asyncio.Event, after: bytes) -> list[bytes]:
    """Read until two heartbeats came after the frame with `after`, then release the gate and read on."""
    frames: list[bytes] = []
    async with aclosing(EventReader(play(steps))) as reader:
        async for data in stream_answer(reader, answer_of(), 0.0, REQUEST.id, QUICK):
            frames.append(data)
            at = next((i for i, sent in enumerate(frames) if after in sent), None)
            if at is not None and len(frames) >= at + 3:
                release.set()
    return frames


async def test_data_chunks_that_say_nothing_come_while_the_prompt_is_read() -> None:
    release = asyncio.Event()
    frames = await heartbeats([progress(128, 512), release, delta("x"), finished()], release, b"assistant")
    beats = [sent for sent in frames if b'"delta":{}' in sent and b'"finish_reason":null' in sent]
    assert len(beats) >= 2
    assert all(sent.startswith(b": prefill 128/512\n\n") for sent in beats)
    assert frames[-1] == DONE


async def test_heartbeats_come_without_any_progress_too() -> None:
    release = asyncio.Event()
    frames = await heartbeats([release, delta("x"), finished()], release, b"assistant")
    assert sum(b'"delta":{}' in sent for sent in frames) >= 3


async def test_heartbeats_come_in_a_silence_between_tokens() -> None:
    release = asyncio.Event()
    frames = await heartbeats([delta("first"), release, delta("second"), finished()], release, b"first")
    got = [c["choices"][0]["delta"] for c in chunks(frames)]
    assert got[got.index({"content": "first"}) + 1] == {}
    assert got[-2:] == [{"content": "second"}, {}]


async def test_heartbeats_between_two_choices_are_of_the_second() -> None:
    """With the pace of a prompt that is read, whichever it is."""
    release = asyncio.Event()
    steps: list[Step] = [delta("one"), ended(0), progress(128, 512), release, delta("two", choice=1), finished()]
    frames: list[bytes] = []
    async with aclosing(EventReader(play(steps))) as reader:
        async for data in stream_answer(reader, answer_of(), 0.0, REQUEST.id, Beats(prefill_s=0.01, decode_s=60)):
            frames.append(data)
            if sum(sent.startswith(b": prefill 128/512") for sent in frames) == 2:
                release.set()
    beats = chunks([sent for sent in frames if sent.startswith(b": prefill")])
    assert [(beat["choices"][0]["index"], beat["choices"][0]["delta"]) for beat in beats[:2]] == [(1, {}), (1, {})]
    roles = [choice["index"] for c in chunks(frames) for choice in c["choices"] if "role" in choice["delta"]]
    assert roles == [0, 1]
    assert frames[-1] == DONE


async def test_calls_of_tools_are_streamed() -> None:
    frames = await stream([call(0, "f"), call(0, "", '{"a":'), call(0, "", "1}"), finished(FinishReason.TOOL_CALLS)])
    choices = [c["choices"][0] for c in chunks(frames)]
    said = [item for choice in choices for item in choice["delta"].get("tool_calls", [])]
    assert [item["index"] for item in said] == [0, 0, 0]
    assert [item.get("id") for item in said] == ["call_00", None, None]
    assert "".join(item["function"]["arguments"] for item in said) == '{"a":1}'
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, None, "tool_calls"]


async def test_frequent_progress_does_not_make_frequent_heartbeats() -> None:
    frames = await stream([*[progress(n, 999) for n in range(200)], delta("x"), finished()])
    assert len(frames) == 4  # the role, the text, the end, [DONE]


async def test_closing_the_reader_ends_the_pending_read() -> None:
    was_left = asyncio.Event()

    async def silent() -> AsyncGenerator[Event]:
        try:
            await asyncio.Event().wait()
            yield finished()
        finally:
            was_left.set()

    reader = EventReader(silent())
    assert await reader.read(0.0) is None
    await reader.aclose()
    assert was_left.is_set()


async def test_read_that_timed_out_loses_no_event() -> None:
    gate = asyncio.Event()
    async with aclosing(EventReader(play([gate, delta("x")]))) as reader:
        assert await reader.read(0.0) is None
        gate.set()
        assert await reader.read() == delta("x")
