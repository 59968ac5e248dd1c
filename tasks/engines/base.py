"""What an engine is: an adapter from `GenerateRequest` and texts to a library that runs models.

An engine lives in the engine process (tasks/engine_process.py). It never sees Celery or Redis.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tasks.contracts import ErrorCode, FinishReason, GenerateRequest, Timings, TokenLogprob, Usage

Float32Array = npt.NDArray[np.float32]


class EngineError(Exception):
    """A request that ends without an answer. The message reaches the client: no path, no traceback in it."""

    code: ErrorCode = ErrorCode.ENGINE_ERROR

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ContextLengthExceeded(EngineError):
    code = ErrorCode.CONTEXT_LENGTH_EXCEEDED

    def __init__(self, n_prompt: int, n_ctx: int, param: str = "messages") -> None:
        super().__init__(
            f"This model's window is {n_ctx} tokens, and the prompt has {n_prompt} tokens: it must leave room for "
            f"at least one generated token. Shorten the prompt.",
            param,
        )


class InvalidRequest(EngineError):
    """The template or tokenizer of this model cannot take the input: the client's fault."""

    code = ErrorCode.INVALID_REQUEST


class DecodeFailed(EngineError):
    """llama.cpp (or another library) reported an error; the engine has cleaned up and lives on."""


class ModelLoadError(Exception):
    """The model cannot be served at all. One clear line that names the file's fault and the setting."""


class FrameSink(Protocol):
    """Where an engine tells about one request. Called on the decode thread, in order; must not block."""

    def progress(self, done: int, total: int) -> None:
        """Prefill: `done` of `total` prompt tokens are in the KV cache. Once per prefill chunk."""

    def delta(
        self,
        text: str,
        tokens: int,
        choice: int = 0,
        is_reasoning: bool = False,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """New text (never empty), covering `tokens` generated tokens. Choices come one after the other, 0 first."""

    def tool_call(self, choice: int, index: int, call_id: str, name: str, arguments: str) -> None:
        """A call begins (`call_id` and `name` are set) or goes on (both are empty); see ToolCall."""

    def choice_finished(self, choice: int, reason: FinishReason) -> None:
        """This choice is whole, and there is another one."""

    def finished(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        """The last choice is whole, and so is the answer. Nothing follows."""

    def failed(self, error: EngineError) -> None:
        """There is no (further) answer. Nothing follows."""

    def cancelled(self, usage: Usage) -> None:
        """The slot of a cancelled request is free again. Nothing follows."""


class Ticket(Protocol):
    """A submitted request."""

    def cancel(self) -> None:
        """Stop within one decode step or prefill chunk; `FrameSink.cancelled` follows.

        From any thread, any number of times.
        """


class ChatEngine(Protocol):
    """One loaded chat model. A worker's engine process owns one.

    Up to `n_slots` requests are decoded together; how is the engine's own business.
    """

    n_slots: int
    n_ctx: int  #: tokens of one request's window

    def submit(self, request: GenerateRequest, sink: FrameSink) -> Ticket:
        """Queue the request for the decode loop and return at once.

        Raises ContextLengthExceeded or InvalidRequest before anything is decoded.
        """

    # Questions about tokens: from any thread, at once, whatever is being decoded. Each may raise EngineError.

    def tokenize_text(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """See Query."""

    def token_pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """What each token stands for: parts of UTF-8, control tokens spelled out.

        Raises InvalidRequest naming `tokens[i]`, which the model does not have.
        """

    def render_prompt(self, request: GenerateRequest) -> str:
        """The messages as the chat template renders them. Raises InvalidRequest."""

    def count_tokens(self, request: GenerateRequest) -> int:
        """Of the whole prompt as `submit` would decode it, of whatever length. Raises InvalidRequest."""

    def close(self) -> None:
        """Cancel what runs, free the model. Returns when the decode thread has ended."""


class EmbeddingResult(NamedTuple):
    vectors: Float32Array  #: [len(texts), width], rows of norm 1
    prompt_tokens: int  #: tokens decoded, over all texts
    truncated: list[int]  #: positions that were cut to the window
    tokens: Sequence[int] = ()  #: decoded of each text


class EmbeddingEngine(Protocol):
    """One loaded embedding model."""

    width: int
    n_ctx: int  #: tokens of one text's window

    def embed(self, texts: Sequence[str], is_cancelled: Callable[[], bool] = lambda: False) -> EmbeddingResult:
        """Vectors of the texts, in order; one text's vector does not depend on its neighbours.

        Blocks for one library call per `LIS_EMBEDDING_BATCH_SIZE` texts; `is_cancelled` is asked between calls.
        Raises InvalidRequest, DecodeFailed (naming the position as `input[i]`), or Cancelled.
        """

    def close(self) -> None: ...


class Cancelled(Exception):
    """`is_cancelled` said yes."""
