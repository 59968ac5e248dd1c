"""Messages from an engine process to the API, on its reply channel."""

from enum import StrEnum
from typing import Any

import msgspec


class FinishReason(StrEnum):
    STOP = "stop"  #: end-of-generation token or stop text
    LENGTH = "length"  #: max_tokens reached, or the window is full
    TOOL_CALLS = "tool_calls"  #: the answer calls tools


class ErrorCode(StrEnum):
    """Why a request failed in the worker; the API turns it into an HTTP status (api/errors.py)."""

    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  #: prompt longer than the window
    INVALID_REQUEST = "invalid_request"  #: the model's template or tokenizer refuses the input
    ENGINE_ERROR = "engine_error"  #: a decode failed; the engine lives on
    ENGINE_LOST = "engine_lost"  #: the engine process died or hung
    WORKER_LOST = "worker_lost"  #: the worker process died
    WORKER_SHUTDOWN = "worker_shutdown"  #: the worker was told to stop before the answer was whole


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One message on the reply channel. `seq` counts from 0 within one attempt of a request."""

    id: str
    attempt: int
    seq: int


class Started(Frame, frozen=True, array_like=True, tag="s"):
    """The worker has claimed the request and the engine has it."""

    worker: str
    boot_id: str  #: changes when the worker is started again


class Progress(Frame, frozen=True, array_like=True, tag="p"):
    """Prefill: `done` of `total` prompt tokens are decoded."""

    done: int
    total: int


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A generated token as the model saw it: before grammar, biases, penalties and temperature."""

    token: bytes  #: UTF-8, of which one token may hold only a part
    logprob: float
    top: list[tuple[bytes, float]] = []  #: the most probable tokens here, best first


class Delta(Frame, frozen=True, array_like=True, tag="d"):
    """New text. Neither half a character, nor part of a stop text or of a tool call's marks is ever in it."""

    text: str
    tokens: int  #: how many generated tokens it covers
    choice: int = 0
    is_reasoning: bool = False  #: what the model thinks before it answers
    logprobs: list[TokenLogprob] = []  #: of the tokens that `text` is made of, where asked for


class ToolCall(Frame, frozen=True, array_like=True, tag="t"):
    """A call of a tool, or more of it: the first frame of a call has its id and name, later ones have them empty."""

    choice: int
    index: int  #: of the call within the choice, from 0
    call_id: str
    name: str
    arguments: str  #: the next fragment of the arguments' JSON text


class ChoiceFinished(Frame, frozen=True, array_like=True, tag="c"):
    """A choice is whole and another one follows; `Finished` ends the last."""

    choice: int
    finish_reason: FinishReason


class Vectors(Frame, frozen=True, array_like=True, tag="v"):
    """The vectors of one embeddings slice; always followed by `Finished`."""

    width: int
    data: bytes  #: rows of `width` little-endian float32, each of norm 1
    truncated: list[int]  #: positions within the slice that were cut to the window
    tokens: list[int] = []  #: decoded of each text; an older worker does not tell


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Of the whole request: each prompt counts once, completions of all choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  #: prompt tokens whose KV was kept from the request before
    reasoning_tokens: int = 0  #: part of completion_tokens that the model spent thinking


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """As llama-server reports them; durations in ms."""

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class Finished(Frame, frozen=True, array_like=True, tag="f"):
    """The request's end, and that of its last choice."""

    finish_reason: FinishReason
    usage: Usage
    timings: Timings


class Failed(Frame, frozen=True, array_like=True, tag="x"):
    """The request's end without an answer. `seq` -1: sent by somebody else than the engine, valid at any time."""

    code: ErrorCode
    message: str  #: for a person; no path, no traceback
    param: str | None = None


class Replied(Frame, frozen=True, array_like=True, tag="r"):
    """The answer to a `Query`: `seq` -1, no request of the queue. `error` is for a person; empty: there is none."""

    values: dict[str, Any]
    error: str = ""
    param: str | None = None
    code: ErrorCode = ErrorCode.INVALID_REQUEST  #: of the error


AnyFrame = Started | Progress | Delta | ToolCall | ChoiceFinished | Vectors | Finished | Failed | Replied
TERMINAL_FRAMES = (Finished, Failed)
