"""What is kept of a file and of a batch. Times are unix seconds.

New fields get defaults, so that older records stay readable.
"""

from enum import StrEnum
from typing import Any

import msgspec


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One file. It exists from the moment its record is there, and never changes."""

    id: str  #: `file-…`
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str  #: `batch`, or `batch_output` of what a batch wrote
    key_name: str = ""  #: API key that it belongs to


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


#: what a status may become. One that nothing follows is an end
NEXT: dict[BatchStatus, frozenset[BatchStatus]] = {
    BatchStatus.VALIDATING: frozenset(
        {BatchStatus.IN_PROGRESS, BatchStatus.FAILED, BatchStatus.CANCELLING, BatchStatus.EXPIRED}
    ),
    BatchStatus.IN_PROGRESS: frozenset(
        {BatchStatus.FINALIZING, BatchStatus.FAILED, BatchStatus.CANCELLING, BatchStatus.EXPIRED}
    ),
    BatchStatus.FINALIZING: frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED}),
    BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED, BatchStatus.FAILED}),
    BatchStatus.COMPLETED: frozenset(),
    BatchStatus.FAILED: frozenset(),
    BatchStatus.EXPIRED: frozenset(),
    BatchStatus.CANCELLED: frozenset(),
}
ENDS = frozenset(status for status, following in NEXT.items() if not following)
CANCELLABLE = frozenset(status for status, following in NEXT.items() if BatchStatus.CANCELLING in following)


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an input file. `line` counts from 1, blank lines too; None: the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a batch's lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """A batch's tokens so far."""

    input: int = 0
    cached: int = 0  #: of `input`
    output: int = 0
    reasoning: int = 0  #: of `output`


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One batch. BatchStore.update makes the next `version`."""

    id: str  #: `batch_…`
    version: int = 1
    key_name: str = ""  #: API key that it belongs to
    share: int = 0  #: of the batch lane's turns (api.keys.Caller)
    endpoint: str  #: `/v1/embeddings`, `/v1/chat/completions` or `/v1/completions`
    input_file_id: str
    completion_window: str = "24h"
    output_expires_after_s: int | None = None  #: from the output files' creation; None: `LIS_FILES_TTL`
    metadata: dict[str, str] | None = None
    model: str = ""  #: of every line; empty until the file is validated
    status: BatchStatus = BatchStatus.VALIDATING
    counts: RequestCounts = RequestCounts()  #: `total` is known from IN_PROGRESS on
    tokens: TokenCounts = TokenCounts()
    errors: tuple[LineError, ...] = ()  #: why it FAILED
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    expires_at: int  #: when what is not done by then is given up
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDS

    @property
    def ended_at(self) -> int | None:
        """None: it has not."""
        moment: int | None = getattr(self, f"{self.status.value}_at") if self.has_ended else None
        return moment


def advanced(batch: BatchRecord, status: BatchStatus, now_s: float, **changes: Any) -> BatchRecord:
    """The batch in its next status, with that status's time and other `changes`. Raises ValueError."""
    if status not in NEXT[batch.status]:
        raise ValueError(f"a batch that is {batch.status} cannot become {status}")
    return msgspec.structs.replace(batch, status=status, **{f"{status.value}_at": int(now_s)}, **changes)
