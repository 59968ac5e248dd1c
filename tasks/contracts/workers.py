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
