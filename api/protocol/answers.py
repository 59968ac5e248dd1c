"""What chat and completions answers have in common: ids, usage, timings, the order of chunks."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from tasks.contracts import Finished, GenerateRequest, Timings, Usage


class Generation(NamedTuple):
    """A parsed body of /v1/chat/completions or /v1/completions."""

    request: GenerateRequest  #: its id, reply_to and created_ms are still empty
    stream: bool
    include_usage: bool
    echo: bool = False


class AnswerFormat(ABC):
    """One answer's JSON, whole or in chunks. One id, created and model throughout."""

    whole_object: str
    chunk_object: str

    def __init__(self, request: GenerateRequest, include_usage: bool = False) -> None:
        self.id = request.id
        self.created = request.created_ms // 1000
        self.model = request.model
        self.include_usage = include_usage

    @abstractmethod
    def whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        """The choice of an answer that does not stream."""

    @abstractmethod
    def chunk_choice(self, text: str | None, finish_reason: str | None) -> dict[str, Any]:
        """The choice of one chunk; `text` None: a chunk that says nothing."""

    @abstractmethod
    def opening(self) -> dict[str, Any] | None:
        """The first chunk, sent before any text is there."""

    def whole(self, text: str, finished: Finished, queue_ms: float) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.whole_object,
            "created": self.created,
            "model": self.model,
            "choices": [self.whole_choice(text, finished.finish_reason.value)],
            "usage": usage_json(finished.usage),
            "timings": timings_json(finished.timings, queue_ms),
        }

    def delta(self, text: str) -> dict[str, Any]:
        return self._chunk([self.chunk_choice(text, None)])

    def heartbeat(self) -> dict[str, Any]:
        """A data chunk that says nothing. Not a comment: some clients look at their Stop button only on data."""
        return self._chunk([self.chunk_choice(None, None)])

    def closing(self, finished: Finished, queue_ms: float) -> list[dict[str, Any]]:
        """The chunk with the finish reason, and the usage chunk where asked for. Timings ride on the last one."""
        chunks = [self._chunk([self.chunk_choice(None, finished.finish_reason.value)])]
        if self.include_usage:
            chunks.append(self._chunk([]) | {"usage": usage_json(finished.usage)})
        chunks[-1]["timings"] = timings_json(finished.timings, queue_ms)
        return chunks

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": self.chunk_object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if self.include_usage:
            chunk["usage"] = None
        return chunk


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def timings_json(timings: Timings, queue_ms: float) -> dict[str, Any]:
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
