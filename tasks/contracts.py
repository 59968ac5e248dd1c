"""What crosses Redis between the API and the workers: messages, frames, key names, task names.

Both sides import this module, so it imports only msgspec and the standard library.
Give every new field a default: an older worker may still be running.
"""

import hashlib
import secrets
from enum import StrEnum
from typing import Any

import msgspec

CHAT_TASK = "tasks.chat"  #: one chat or text completion
EMBED_TASK = "tasks.embed"  #: one slice of an embeddings request

CLAIM_TTL_S = 86_400  #: longer than any request may run; a claim that outlives its request only costs memory
WORKER_TTL_S = 5  #: a worker whose heartbeat is older is lost
FAILED_TTL_S = 600  #: why a worker gave up stays known for so long; nobody waits for it, so nothing is lost later
HEARTBEAT_INTERVAL_S = 1.0
CLAIM_WAITING = "waiting"  #: value of the claim key while nobody has taken the request


class Lane(StrEnum):
    """Queue class. Workers empty `interactive` before they look at `batch`."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class FinishReason(StrEnum):
    STOP = "stop"  #: end-of-generation token or stop text
    LENGTH = "length"  #: max_tokens reached, or the window is full


class ErrorCode(StrEnum):
    """Why a request failed in the worker; the API turns it into an HTTP status (api/errors.py)."""

    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  #: prompt longer than the window
    INVALID_REQUEST = "invalid_request"  #: the model's template or tokenizer refuses the input
    ENGINE_ERROR = "engine_error"  #: a decode failed; the engine lives on
    ENGINE_LOST = "engine_lost"  #: the engine process died or hung
    WORKER_LOST = "worker_lost"  #: the worker process died
    WORKER_SHUTDOWN = "worker_shutdown"  #: the worker was told to stop before the answer was whole


# -- keys and channels ---------------------------------------------------------------------------


def claim_id(request_id: str, attempt: int) -> str:
    """What is claimed: one attempt of a request. A message of the lost attempt thus never takes the second one's."""
    return request_id if attempt == 1 else f"{request_id}~{attempt}"


def claim_key(claim: str) -> str:
    """`waiting`, then `worker#boot#delivery` of who runs it. Decides every race (tasks/claims.py)."""
    return f"lis:claim:{claim}"


def worker_key(worker: str) -> str:
    """The worker's heartbeat, a msgpack `WorkerState` with a TTL of `WORKER_TTL_S`, or `FAILED_TTL_S` of a failed one."""
    return f"lis:worker:{worker}"


WORKERS_KEY = "lis:workers"  #: sorted set of worker names by the unix time (s) of their last heartbeat


def lane_key(queue: str) -> str:
    """Sorted set of the ids that wait on a queue, by the unix time (ms, Redis's clock) their wait ends."""
    return f"lis:lane:{queue}"


def reply_channel(api_id: str) -> str:
    """Pub/sub channel on which one API process gets all of its frames."""
    return f"lis:reply:{api_id}"


def control_channel(worker: str) -> str:
    """Pub/sub channel on which one worker's engine process gets `Control` messages."""
    return f"lis:control:{worker}"


def cancelled_key(request_id: str) -> str:
    """Exists when a running request was cancelled; for a worker that missed the control message."""
    return f"lis:cancelled:{request_id}"


CANCELLED_TTL_S = 600


def models_key(chat: str, embedding: str | None) -> str:
    """Short name of a set of served models. Workers that serve the same set share their queues."""
    return hashlib.sha256(f"{chat}\0{embedding or ''}".encode()).hexdigest()[:8]


def queue_name(lane: Lane, models: str) -> str:
    """Celery queue of a lane, for the workers that serve `models` (a `models_key`)."""
    return f"lis.{models}.{lane.value}"


def new_request_id(prefix: str) -> str:
    """`chatcmpl-…`, `cmpl-…` or `embd-…`: Celery task id, log field, frame key and `x-request-id` in one."""
    return f"{prefix}-{secrets.token_hex(12)}"


# -- messages: API -> worker ---------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Defaults are llama.cpp's own (`llama-server --help`)."""

    temperature: float = 0.8  #: 0: always the most probable token
    top_k: int = 40  #: 0: off
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None  #: None: another one each time
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  #: tokens the penalties look back; -1: the window


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One chat (`messages`) or text completion (`prompt`). Sent as the only argument of `CHAT_TASK`."""

    id: str
    model: str
    reply_to: str  #: `api_id`: frames go to `reply_channel(reply_to)`
    lane: Lane = Lane.INTERACTIVE
    attempt: int = 1  #: 2 when a worker died with it before a token was sent
    created_ms: int = 0  #: unix ms when the API accepted it
    messages: list[dict[str, Any]] | None = None  #: OpenAI messages with plain-text content (api/protocol/messages.py)
    prompt: str | None = None
    tools: list[dict[str, Any]] | None = None  #: OpenAI tool definitions, given to the chat template
    template_kwargs: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    max_tokens: int | None = None  #: None: up to LIS_MAX_MODEL_LENGTH or what the window leaves
    stop: list[str] = []


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of an embeddings request. Sent as the only argument of `EMBED_TASK`."""

    id: str  #: of this slice; slice 0 has the request's id
    model: str
    reply_to: str
    lane: Lane = Lane.INTERACTIVE
    attempt: int = 1
    created_ms: int = 0
    texts: list[str] = []


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """API -> engine process, over `control_channel`."""

    op: str  #: `cancel`, or `resend` (frames from `from_seq` on)
    id: str
    from_seq: int = 0


# -- frames: worker -> API -----------------------------------------------------------------------


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


class Delta(Frame, frozen=True, array_like=True, tag="d"):
    """New text. Neither half a character nor part of a stop text is ever in it."""

    text: str
    tokens: int  #: how many generated tokens it covers


class Vectors(Frame, frozen=True, array_like=True, tag="v"):
    """The vectors of one embeddings slice; always followed by `Finished`."""

    width: int
    data: bytes  #: rows of `width` little-endian float32, each of norm 1
    truncated: list[int]  #: positions within the slice that were cut to the window


class Usage(msgspec.Struct, frozen=True, array_like=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  #: prompt tokens whose KV was kept from the request before


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """As llama-server reports them; durations in ms."""

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class Finished(Frame, frozen=True, array_like=True, tag="f"):
    finish_reason: FinishReason
    usage: Usage
    timings: Timings


class Failed(Frame, frozen=True, array_like=True, tag="x"):
    """The request's end without an answer. `seq` -1: sent by somebody else than the engine, valid at any time."""

    code: ErrorCode
    message: str  #: for a person; no path, no traceback
    param: str | None = None


AnyFrame = Started | Progress | Delta | Vectors | Finished | Failed
TERMINAL_FRAMES = (Finished, Failed)


# -- heartbeat -----------------------------------------------------------------------------------


class WorkerStatus(StrEnum):
    DOWNLOADING = "downloading"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  #: finishes what it runs and takes nothing new
    FAILED = "failed"  #: cannot load; `message` says why


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model a worker serves, as /v1/models lists it."""

    id: str
    kind: str  #: `chat` or `embedding`
    created: int = 0  #: unix time (s) of the file
    n_ctx: int = 0  #: tokens of one request's window
    width: int = 0  #: embedding width; 0 for chat


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's heartbeat."""

    name: str
    boot_id: str
    status: WorkerStatus
    message: str = ""  #: what it does now, or why it failed
    progress: float = 0.0  #: 0..1 of the download
    models: list[ModelInfo] = []
    queues: dict[str, str] = {}  #: lane -> Celery queue
    slots: int = 1
    running: list[str] = []
    embedding_batch_size: int = 4
    mean_run_s: float = 0.0  #: moving average of how long a request held a slot; 0: nothing measured yet
    beat_ms: int = 0  #: unix ms of this heartbeat
