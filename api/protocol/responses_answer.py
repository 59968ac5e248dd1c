"""The answer of /v1/responses, whole or as events: one state that grows with every frame."""

import time
from collections.abc import Sequence
from typing import Any

from api.protocol.answers import timings_json
from api.protocol.choices import Answer, Part
from api.protocol.logprobs import chat_logprobs
from api.protocol.responses_items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    Event,
    FunctionCall,
    Message,
    OutputItem,
    Reasoning,
)
from api.protocol.responses_request import own_param, own_terms
from tasks.contracts import Delta, Finished, FinishReason, GenerateRequest, Timings, TokenLogprob, ToolCall, Usage

FAILED = "failed"


class ResponseAnswer:
    """One response. In a stream, `sequence_number` counts its events from 0.

    `echo`: members that repeat the request (responses_request.py).
    """

    names_events = True
    has_done = False

    def __init__(self, request: GenerateRequest, echo: dict[str, Any]) -> None:
        self._request = request
        self._echo = echo
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._sequence_number = 0

    def whole(self, answer: Answer, queue_ms: float) -> dict[str, Any]:
        """The response of an answer that does not stream: that of the last event, had it streamed."""
        [choice] = answer.choices
        if choice.reasoning:
            self._take_text(choice.reasoning, True)
        if choice.text:
            self._take_text(choice.text, False, choice.logprobs)
        for call in choice.calls:
            self._take_call(call.id, call.name, call.arguments)
        ended = self._finish(choice.finish_reason, answer.usage, answer.timings, queue_ms)
        response: dict[str, Any] = ended[-1]["response"]
        return response

    def opening(self) -> list[Event]:
        return self._numbered([self._lifecycle("created", IN_PROGRESS), self._lifecycle("in_progress", IN_PROGRESS)])

    def heartbeat(self) -> Event:
        """An event that says nothing new, and that every client knows."""
        return self._numbered([self._lifecycle("in_progress", IN_PROGRESS)])[0]

    def part(self, part: Part) -> list[Event]:
        match part:
            case ToolCall():
                return self._numbered(self._take_call(part.call_id, part.name, part.arguments))
            case Delta() if part.text:
                return self._numbered(self._take_text(part.text, part.is_reasoning, part.logprobs))
        return []

    def closing(self, finished: Finished, queue_ms: float) -> list[Event]:
        return self._numbered(self._finish(finished.finish_reason, finished.usage, finished.timings, queue_ms))

    def failure(self, error: dict[str, Any]) -> list[Event]:
        """The end of an answer that failed after its head. `error`: the body of an error answer.

        The `error` event has it twice: flat as OpenAI documents it, and as an object, which SDKs raise.
        """
        inner = error["error"]
        inner = inner | {"message": own_terms(inner["message"]), "param": own_param(inner["param"])}
        code = "server_error" if inner["type"] == "server_error" else "invalid_prompt"  # OpenAI's list has no others
        ends = self._end(INCOMPLETE)
        failed = self._lifecycle(FAILED, FAILED, error={"code": code, "message": inner["message"]})
        flat = {key: inner[key] for key in ("code", "message", "param")}
        return self._numbered([*ends, failed, {"type": "error", **flat, "error": inner}])

    def _finish(self, reason: FinishReason, usage: Usage, timings: Timings, queue_ms: float) -> list[Event]:
        """The end of the last item, and the whole response. An answer without a word has an empty message."""
        status = INCOMPLETE if reason is FinishReason.LENGTH else COMPLETED
        events: list[Event] = []
        if not self._items or (status == COMPLETED and isinstance(self._items[-1], Reasoning)):
            events += self._begin(Message(len(self._items)))
        events += self._end(status)
        ended = self._lifecycle(
            status,
            status,
            completed_at=int(time.time()) if status == COMPLETED else None,
            incomplete_details={"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            usage=usage_json(usage),
            timings=timings_json(timings, queue_ms),
        )
        return [*events, ended]

    def _take_text(self, text: str, is_reasoning: bool, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        kind = Reasoning if is_reasoning else Message
        events = [] if isinstance(self._open, kind) else self._begin(kind(len(self._items)))
        assert isinstance(self._open, Reasoning | Message)
        return events + self._open.add(text, chat_logprobs(logprobs)["content"])

    def _take_call(self, call_id: str, name: str, arguments: str) -> list[Event]:
        """`call_id` and `name` are empty where it is more of the same call."""
        events: list[Event] = []
        if call_id or name or not isinstance(self._open, FunctionCall):
            events = self._begin(FunctionCall(len(self._items), call_id, name))
        assert isinstance(self._open, FunctionCall)
        return events + (self._open.add(arguments) if arguments else [])

    def _begin(self, item: OutputItem) -> list[Event]:
        events = self._end(COMPLETED)
        self._items.append(item)
        self._open = item
        return events + item.open()

    def _end(self, status: str) -> list[Event]:
        item, self._open = self._open, None
        return [] if item is None else item.close(status)

    def _lifecycle(self, event: str, status: str, **members: Any) -> Event:
        """An event that holds the response, whose output is empty until the end."""
        output = [] if status == IN_PROGRESS else [item.json() for item in self._items]
        response = {
            "id": self._request.id,
            "object": "response",
            "created_at": self._request.created_ms // 1000,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": self._request.model,
            "output": output,
            "usage": None,
        }
        return {"type": f"response.{event}", "response": response | self._echo | members}

    def _numbered(self, events: list[Event]) -> list[Event]:
        for event in events:
            event["sequence_number"] = self._sequence_number
            self._sequence_number += 1
        return events


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
