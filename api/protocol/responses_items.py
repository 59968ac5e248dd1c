"""The output items of a response: reasoning, message, function call. Each says what to send when it grows."""

import secrets
from abc import ABC, abstractmethod
from typing import Any

Event = dict[str, Any]  #: of a stream; `sequence_number` is still missing

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class OutputItem(ABC):
    """One item, from its first fragment to its last."""

    prefix: str

    def __init__(self, output_index: int) -> None:
        self.id = f"{self.prefix}_{secrets.token_hex(12)}"
        self.output_index = output_index
        self.status = IN_PROGRESS
        self._fragments: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._fragments)

    def open(self) -> list[Event]:
        return [{"type": "response.output_item.added", "output_index": self.output_index, "item": self.json()}]

    def close(self, status: str) -> list[Event]:
        """Nothing more comes. `status`: completed or incomplete."""
        self.status = status
        item = {"type": "response.output_item.done", "output_index": self.output_index, "item": self.json()}
        return [*self._last_events(), item]

    @abstractmethod
    def json(self) -> dict[str, Any]:
        """The item as it is by now."""

    @abstractmethod
    def _last_events(self) -> list[Event]:
        """Those before the item's own end."""

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.output_index} | members


class TextItem(OutputItem):
    """An item with one content part, which is made of text."""

    event: str  #: events of its text are `response.{event}.delta` and `.done`

    def open(self) -> list[Event]:
        """The item itself goes out without the part, which follows."""
        [added] = super().open()
        added["item"]["content"] = []
        return [added, self._event("content_part.added", content_index=0, part=self.part())]

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._fragments.append(text)
        return [self._event(f"{self.event}.delta", content_index=0, delta=text, **self._extra(logprobs))]

    def _last_events(self) -> list[Event]:
        part = self.part()
        return [
            self._event(f"{self.event}.done", content_index=0, text=part["text"], **self._extra(part.get("logprobs"))),
            self._event("content_part.done", content_index=0, part=part),
        ]

    def _extra(self, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
        """What the text's events have besides the text."""
        return {}

    @abstractmethod
    def part(self) -> dict[str, Any]: ...


class Message(TextItem):
    prefix = "msg"
    event = "output_text"

    def __init__(self, output_index: int) -> None:
        super().__init__(output_index)
        self._logprobs: list[dict[str, Any]] = []

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._logprobs += logprobs
        return super().add(text, logprobs)

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}

    def json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": [self.part()],
        }

    def _extra(self, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
        return {"logprobs": logprobs or []}


class Reasoning(TextItem):
    """What the model thought, in full: there is no summary."""

    prefix = "rs"
    event = "reasoning_text"

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}

    def json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": [],
            "content": [self.part()],
            "encrypted_content": None,
        }


class FunctionCall(OutputItem):
    prefix = "fc"

    def __init__(self, output_index: int, call_id: str, name: str) -> None:
        super().__init__(output_index)
        self.call_id = call_id
        self.name = name

    def add(self, arguments: str) -> list[Event]:
        self._fragments.append(arguments)
        return [self._event("function_call_arguments.delta", delta=arguments)]

    def json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }

    def _last_events(self) -> list[Event]:
        return [self._event("function_call_arguments.done", name=self.name, arguments=self.text)]
