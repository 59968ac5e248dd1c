"""JobState and answers of several choices, calls and log probabilities."""

from typing import Any

import pytest

from api.job import JobState
from tasks.contracts import (
    AnyFrame,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Started,
    Timings,
    TokenLogprob,
    ToolCall,
    Usage,
)

ID = "chatcmpl-1"
FRAMES: list[AnyFrame] = [
    Started(ID, 1, 0, "worker", "boot"),
    Delta(ID, 1, 1, "Hm", 1, is_reasoning=True),
    Delta(ID, 1, 2, ".", 1, is_reasoning=True),
    Delta(ID, 1, 3, "a", 1, logprobs=[TokenLogprob(b"a", -1.0)]),
    Delta(ID, 1, 4, "b", 1, logprobs=[TokenLogprob(b"b", -2.0)]),
    ToolCall(ID, 1, 5, 0, 0, "call_1", "f", "{"),
    ToolCall(ID, 1, 6, 0, 0, "", "", "}"),
    ChoiceFinished(ID, 1, 7, 0, FinishReason.TOOL_CALLS),
    Delta(ID, 1, 8, "c", 1, choice=1),
    Finished(ID, 1, 9, FinishReason.STOP, Usage(), Timings()),
]


def state() -> JobState:
    return JobState(GenerateRequest(id=ID, model="m", reply_to="api", n=2), "queue", 10.0)


async def test_text_that_piled_up_is_merged_and_everything_else_comes_in_order() -> None:
    job = state()
    for frame in FRAMES:
        job.feed(frame)
    events: list[Any] = [event async for event in job.events()]
    assert [type(event).__name__ for event in events] == [
        "Delta", "Delta", "ToolCall", "ToolCall", "ChoiceFinished", "Delta", "Finished",
    ]  # fmt: skip
    assert [(event.text, event.tokens, event.choice) for event in events if isinstance(event, Delta)] == [
        ("Hm.", 2, 0),
        ("ab", 2, 0),
        ("c", 1, 1),
    ]
    assert [token.token for token in events[1].logprobs] == [b"a", b"b"]


@pytest.mark.parametrize("frame", [FRAMES[1], FRAMES[3], FRAMES[5], FRAMES[7]])
async def test_whatever_is_part_of_an_answer_rules_out_another_attempt(frame: AnyFrame) -> None:
    job = state()
    job.feed(FRAMES[0])
    assert job.can_restart()
    job.feed(type(frame)(**{name: getattr(frame, name) for name in frame.__struct_fields__} | {"seq": 1}))
    assert not job.can_restart()
