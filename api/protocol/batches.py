"""/v1/batches: JSON -> what is asked, BatchRecord -> JSON."""

from typing import Any, NamedTuple

from api.batches.records import BatchRecord
from api.protocol.batch_lines import MODEL_KINDS
from api.protocol.fields import Fields, InvalidRequest, unsupported
from api.protocol.files import read_expiry

OTHER_ENDPOINTS = frozenset(
    {
        *("/v1/responses", "/v1/moderations", "/v1/images/generations", "/v1/images/edits", "/v1/videos"),
    }
)
WINDOW = "24h"
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  #: of metadata: OpenAI's limits
DEFAULT_LIMIT, MAX_LIMIT = 20, 100  #: of one page
TIMES = (
    *("in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)


class BatchBody(NamedTuple):
    endpoint: str
    input_file_id: str
    metadata: dict[str, str] | None
    output_expires_after_s: int | None


def parse_batch(body: dict[str, Any]) -> BatchBody:
    """Raises InvalidRequest."""
    fields = Fields(body)
    input_file_id = fields.required_string("input_file_id")
    endpoint = fields.required_string("endpoint")
    if endpoint not in MODEL_KINDS:
        message = f"'endpoint' must be one of: {', '.join(MODEL_KINDS)}."
        raise unsupported("endpoint", message) if endpoint in OTHER_ENDPOINTS else InvalidRequest(message, "endpoint")
    if fields.required_string("completion_window") != WINDOW:
        raise InvalidRequest(f"'completion_window' must be '{WINDOW}'.", "completion_window")
    return BatchBody(endpoint, input_file_id, _read_metadata(fields), read_expiry(body, "output_expires_after"))


def _read_metadata(fields: Fields) -> dict[str, str] | None:
    given = fields.mapping("metadata")
    if given is None:
        return None
    if len(given) > MAX_PAIRS:
        raise InvalidRequest(f"'metadata' has {len(given)} pairs; it may have {MAX_PAIRS}.", "metadata")
    for key, value in given.items():
        if len(key) > MAX_KEY:
            raise InvalidRequest(f"'metadata' has a key longer than {MAX_KEY} characters.", "metadata")
        if not isinstance(value, str) or len(value) > MAX_VALUE:
            name = f"metadata.{key}"
            raise InvalidRequest(f"'{name}' must be a string of at most {MAX_VALUE} characters.", name)
    return given


def batch_json(batch: BatchRecord) -> dict[str, Any]:
    errors = [
        {"code": error.code, "line": error.line, "message": error.message, "param": error.param}
        for error in batch.errors
    ]
    tokens = batch.tokens
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        **{name: getattr(batch, name) for name in TIMES},
        "request_counts": {
            "total": batch.counts.total,
            "completed": batch.counts.completed,
            "failed": batch.counts.failed,
        },
        "usage": {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.input + tokens.output,
        },
        "metadata": batch.metadata,
    }
