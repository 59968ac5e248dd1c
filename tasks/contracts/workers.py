"""What a worker announces of itself."""

from enum import StrEnum

import msgspec


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


class Work(msgspec.Struct, frozen=True, array_like=True):
    """The size of a request: what its run time follows from. None of its text."""

    kind: str  #: `chat` or `embedding`: the kind of the model that runs it
    chars: int  #: of the prompt, or of all texts to embed
    max_tokens: int = 0  #: of one choice; 0: as many as the worker lets it have
    choices: int = 1
    share: int = 0  #: whose turn it takes (`GenerateRequest.share`)
    caller: str = ""  #: name of the API key that it came with


class RunningWork(msgspec.Struct, frozen=True, array_like=True):
    """A request that a worker runs."""

    id: str
    lane: str
    began_ms: int  #: unix ms, Redis's clock, when the worker took it
    work: Work


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has measured of its models, the newest requests counting most. 0: not measured yet."""

    chats: int = 0  #: generations measured
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0  #: of one slot
    chars_per_token: float = 0.0  #: of prompts, chat template included
    fresh: float = 1.0  #: part of the prompt tokens that had to be decoded: their KV was not kept from before
    overhead_s: float = 0.0  #: how long a request holds its slot beyond prefill and decode
    lengths: list[int] = []  #: tokens of the last answers that ended by themselves
    cut_lengths: list[int] = []  #: and of those that `max_tokens` or the client ended: they would have been longer
    embeddings: int = 0  #: slices measured
    embedding_chars_per_s: float = 0.0
    embedding_tokens_per_s: float = 0.0
    embedding_overhead_s: float = 0.0


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's heartbeat."""

    name: str
    boot_id: str
    status: WorkerStatus
    message: str = ""  #: what it does now, or why it failed
    progress: float = 0.0  #: 0..1 of the download
    models: list[ModelInfo] = []
    queues: dict[str, str] = {}  #: lane -> Celery queue of its share 0
    shares: int = 1  #: how many queues each lane has
    slots: int = 1
    running: list[str] = []
    work: list[RunningWork] = []  #: the sizes of what is running
    rates: Rates = Rates()
    max_tokens: int = 0  #: most tokens of one answer; 0: not told
    embedding_batch_size: int = 4
    beat_ms: int = 0  #: unix ms of this heartbeat
