"""The frames of one request that are to be sent, and those that were."""

from collections.abc import Callable
from typing import Any

from tasks.contracts import AnyFrame, Delta, Failed, Frame, ToolCall, Vectors, reply_channel
from tasks.ended import Kept


class Outbox:
    """The frames of one attempt of one request. Filled by any thread, emptied by the publisher's (tasks/frames.py).

    All but `put` is called under the publisher's lock.
    """

    def __init__(
        self,
        on_put: "Callable[[Outbox, type[Frame], tuple[Any, ...]], None]",
        request_id: str,
        attempt: int,
        reply_to: str,
    ) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self.channel = reply_channel(reply_to)
        self.history: list[AnyFrame] = []
        self.ended_at: float | None = None
        self.is_streaming = False  #: the last that was put is part of an answer: what goes on there may wait a little
        self._pending: list[tuple[type[Frame], list[Any]]] = []  # a Delta's texts as a list
        self._on_put = on_put

    def put(self, kind: type[Frame], *fields: Any) -> None:
        """Queue a frame. Never blocks on Redis; one that goes on where an unsent one ends is merged into it."""
        self._on_put(self, kind, fields)

    def add(self, kind: type[Frame], fields: tuple[Any, ...]) -> bool:
        """False: an unsent frame has taken it in."""
        if self._pending and self._pending[-1][0] is kind and _merge(kind, self._pending[-1][1], fields):
            return False
        self._pending.append((kind, [[fields[0]], *fields[1:]] if kind is Delta else list(fields)))
        return True

    def number(self) -> list[AnyFrame]:
        """The pending items as numbered frames."""
        frames: list[Any] = []
        for kind, fields in self._pending:
            values = ["".join(fields[0]), *fields[1:]] if kind is Delta else fields
            frames.append(kind(self.request_id, self.attempt, len(self.history) + len(frames), *values))
        self._pending = []
        self.history.extend(frames)
        return frames


class KeptOutbox(Outbox):
    """Of a request without a reply channel: its end goes back to the worker, with the vectors."""

    def __init__(self, request_id: str, attempt: int) -> None:
        super().__init__(_not_sent, request_id, attempt, "")
        self.kept = Kept()

    def put(self, kind: type[Frame], *fields: Any) -> None:
        """Vectors: width, data, truncated, …. Failed: code, message, param."""
        if kind is Vectors:
            self.kept = Kept(*fields[:3])
        elif kind is Failed:
            self.kept = Kept(error=fields[1])


def _not_sent(outbox: Outbox, kind: type[Frame], fields: tuple[Any, ...]) -> None:
    raise AssertionError("it has nobody to send to")


def _merge(kind: type[Frame], before: list[Any], fields: tuple[Any, ...]) -> bool:
    """Of Delta: text, tokens, choice, is_reasoning, logprobs. Of ToolCall: choice, index, id, name, arguments."""
    if kind is Delta and before[2:4] == list(fields[2:4]):
        before[0].append(fields[0])
        before[1] += fields[1]
        before[4] = before[4] + fields[4]
        return True
    if kind is ToolCall and before[:2] == list(fields[:2]) and not fields[2]:
        before[4] += fields[4]
        return True
    return False
