"""What chat and completions answers have in common: ids, usage, timings, the order of chunks."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from api.protocol.choices import Answer, Choice, Part
from tasks.contracts import ChoiceFinished, Delta, Finished, FinishReason, GenerateRequest, Timings, ToolCall, Usage

Json = dict[str, Any]


class Generation(NamedTuple):
    """A parsed body of /v1/chat/completions or /v1/completions."""

    request: GenerateRequest  #: its id, reply_to and created_ms are still empty
    stream: bool
    include_usage: bool
    echo: bool = False
    keep: int | None = None  #: how many choices of each prompt the answer has, the best ones; None: all
    shows_logprobs: bool = True  #: False: they are there to find the best choices only


class StreamFormat(Protocol):
    """The chunks of an answer that streams, one format object for each answer."""

    names_events: bool  #: each chunk's `type` is also the name of its event
    has_done: bool  #: `[DONE]` is the last frame of a good end

    def opening(self) -> list[Json]:
        """The first chunks, sent before there is any text."""

    def part(self, part: Part) -> list[Json]:
        """The chunks that say it."""

    def heartbeat(self) -> Json:
        """A chunk that says nothing."""

    def closing(self, finished: Finished, queue_ms: float) -> list[Json]:
        """The last chunks."""

    def failure(self, error: Json) -> list[Json]:
        """The last chunks of an answer that fails; `error` is the body of an error answer."""


class AnswerFormat(ABC):
    """One answer's JSON, whole or in chunks. One id, created and model throughout; choices one after the other."""

    whole_object: str
    chunk_object: str
    names_events = False
    has_done = True

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.request = generation.request
        self._current = 0  #: whose chunks are being sent
        self._n_opened = 0

    # -- what the formats differ in ----------------------------------------------------------------

    @abstractmethod
    def whole_choice(self, index: int, choice: Choice) -> Json:
        """The choice of an answer that does not stream."""

    @abstractmethod
    def opened(self, index: int) -> list[Json]:
        """What a choice begins with in a stream."""

    @abstractmethod
    def said(self, part: Delta | ToolCall) -> list[Json]:
        """New text or more of a call, as the choices of one chunk each."""

    @abstractmethod
    def silent(self, index: int, finish_reason: str | None = None) -> Json:
        """The choice of a chunk without text: a heartbeat, or the end of the choice."""

    # -- whole -------------------------------------------------------------------------------------

    def whole(self, answer: Answer, queue_ms: float) -> Json:
        choices = [self.whole_choice(index, choice) for index, choice in enumerate(self.selected(answer.choices))]
        body = self._head(self.whole_object) | {"choices": choices}
        return body | {"usage": usage_json(answer.usage), "timings": timings_json(answer.timings, queue_ms)}

    def selected(self, choices: list[Choice]) -> list[Choice]:
        return choices

    # -- in chunks ---------------------------------------------------------------------------------

    def opening(self) -> list[Json]:
        return self._open(0)

    def part(self, part: Part) -> list[Json]:
        """A choice that begins gets its opening, so that a heartbeat between two choices is of the second."""
        chunks = self._open(part.choice)
        if isinstance(part, ChoiceFinished):
            return [*chunks, self._end(part.choice, part.finish_reason), *self._open(part.choice + 1)]
        return chunks + [self._chunk([choice]) for choice in self.said(part)]

    def heartbeat(self) -> Json:
        """A data chunk that says nothing. Not a comment: some clients look at their Stop button only on data."""
        return self._chunk([self.silent(self._current)])

    def closing(self, finished: Finished, queue_ms: float) -> list[Json]:
        """The chunk with the finish reason, and the usage chunk where asked for. Timings ride on the last one."""
        chunks = [self._end(self._current, finished.finish_reason)]
        if self.generation.include_usage:
            chunks.append(self._chunk([]) | {"usage": usage_json(finished.usage)})
        chunks[-1]["timings"] = timings_json(finished.timings, queue_ms)
        return chunks

    def failure(self, error: Json) -> list[Json]:
        return [error]

    def _open(self, choice: int) -> list[Json]:
        self._current = choice
        first, self._n_opened = self._n_opened, max(self._n_opened, choice + 1)
        return [self._chunk([item]) for index in range(first, self._n_opened) for item in self.opened(index)]

    def _end(self, choice: int, reason: FinishReason) -> Json:
        return self._chunk([self.silent(choice, reason.value)])

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._head(self.chunk_object) | {"choices": choices}
        if self.generation.include_usage:
            chunk["usage"] = None
        return chunk

    def _head(self, kind: str) -> Json:
        request = self.request
        return {"id": request.id, "object": kind, "created": request.created_ms // 1000, "model": request.model}


def usage_json(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_json(timings: Timings, queue_ms: float) -> Json:
    """Names and units are llama-server's; `queue_ms` is the wait before a worker took the request."""
    return {
        "prompt_n": timings.prompt_n,
        "prompt_ms": round(timings.prompt_ms, 3),
        "prompt_per_second": _per_second(timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": round(timings.predicted_ms, 3),
        "predicted_per_second": _per_second(timings.predicted_n, timings.predicted_ms),
        "queue_ms": round(queue_ms, 3),
    }


def _per_second(count: int, duration_ms: float) -> float:
    return round(1000.0 * count / duration_ms, 3) if duration_ms > 0 else 0.0
