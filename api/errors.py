"""Every error answer: one table from exceptions to status, type and code.

The body is always `{"error": {"message", "type", "param", "code"}}`. What the table does not know is a 500 that
says nothing of the inside; the log has it, under the request id.
"""

import logging
import math
from typing import Any, NamedTuple

from werkzeug.exceptions import HTTPException, MethodNotAllowed

from api.batches.errors import BatchMissing, FileInUse, FileMissing, FileTooLarge, NotCancellable, StorageFull
from api.job_types import (
    JobRefused,
    ModelLoading,
    ModelNotFound,
    QueueUnavailable,
    RequestFailed,
    ServerBusy,
    WrongModelKind,
)
from api.protocol.fields import InvalidRequest
from tasks.contracts import ErrorCode

log = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
MAX_RETRY_AFTER_S = 60  #: openai-python ignores a longer Retry-After and tries again within seconds
QUEUE_WAIT_HEADER = "x-queue-wait-ms"
RESTART_RETRY_S = 5  #: about what a worker needs to stop and load again


class InvalidApiKey(Exception):
    """Missing or wrong key."""


class BodyTooLarge(Exception):
    def __init__(self, limit_bytes: int, unpacked: bool = False) -> None:
        which = "The unpacked request body" if unpacked else "The request body"
        super().__init__(f"{which} is larger than the limit of {limit_bytes} bytes.")


class KeyConflict(Exception):
    """An idempotency key that cannot be used for this request. `may_retry`: later it can."""

    def __init__(self, message: str, code: str, may_retry: bool) -> None:
        super().__init__(message)
        self.code = code
        self.may_retry = may_retry


class UnsupportedMediaType(Exception):
    """Neither JSON, nor a content encoding that is decoded here."""


class ErrorAnswer(NamedTuple):
    status: int
    message: str
    type: str
    code: str | None
    param: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


#: how the worker says it failed -> status and code. 5xx only where asking again may help: SDKs do so by themselves
FAILURES: dict[ErrorCode, tuple[int, str | None]] = {
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: (400, "context_length_exceeded"),
    ErrorCode.INVALID_REQUEST: (400, None),
    ErrorCode.ENGINE_ERROR: (500, "internal_error"),
    ErrorCode.ENGINE_LOST: (500, "worker_lost"),
    ErrorCode.WORKER_LOST: (500, "worker_lost"),
    ErrorCode.WORKER_SHUTDOWN: (
        503,
        "queue_unavailable",
    ),  # stopped on purpose: another worker, or this one, comes back
}

REFUSALS: dict[type[JobRefused], str] = {
    ServerBusy: "server_busy",
    ModelLoading: "model_loading",
    QueueUnavailable: "queue_unavailable",
}

#: of files and batches -> status, code and param
STORED: dict[type[Exception], tuple[int, str, str | None]] = {
    FileMissing: (404, "file_not_found", "file_id"),
    BatchMissing: (404, "batch_not_found", "batch_id"),
    FileTooLarge: (413, "request_too_large", "file"),
    FileInUse: (409, "file_in_use", "file_id"),
    NotCancellable: (409, "batch_not_cancellable", "batch_id"),
    StorageFull: (507, "insufficient_storage", None),
}
# SDKs retry these by themselves, and a moment later nothing will be different
NO_RETRY = (("x-should-retry", "false"),)

#: what the framework itself raises -> code and message
HTTP_ERRORS: dict[int, tuple[str, str]] = {
    400: ("bad_request", "The request is malformed."),
    404: ("unknown_url", "This URL is not known here."),
    405: ("method_not_allowed", "This URL does not take this method."),
    408: ("request_timeout", "The request body did not arrive in time."),
    413: ("request_too_large", "The request body is too large."),
    415: ("unsupported_media_type", "This media type is not supported."),
    431: ("headers_too_large", "The request's header fields are too large."),
}


def describe(exc: BaseException) -> ErrorAnswer:
    """The answer for an exception. Unknown ones are `internal_error`; the caller logs them."""
    match exc:
        case InvalidRequest():
            return ErrorAnswer(400, exc.message, INVALID_REQUEST, exc.code, exc.param)
        case InvalidApiKey():
            message = "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'."
            return ErrorAnswer(
                401, message, "authentication_error", "invalid_api_key", None, (("WWW-Authenticate", "Bearer"),)
            )
        case ModelNotFound():
            return ErrorAnswer(404, str(exc), INVALID_REQUEST, "model_not_found", "model")
        case WrongModelKind():
            return ErrorAnswer(400, str(exc), INVALID_REQUEST, None, "model")
        case BodyTooLarge():
            return ErrorAnswer(413, str(exc), INVALID_REQUEST, "request_too_large")
        case KeyConflict():
            # SDKs retry a 409 by themselves
            again = ("Retry-After", str(RESTART_RETRY_S)) if exc.may_retry else ("x-should-retry", "false")
            return ErrorAnswer(409, str(exc), INVALID_REQUEST, exc.code, None, (again,))
        case UnsupportedMediaType():
            headers = (("Accept-Encoding", "gzip, deflate"),)  # RFC 9110, 15.5.16
            return ErrorAnswer(415, str(exc), INVALID_REQUEST, "unsupported_media_type", None, headers)
        case RequestFailed():
            return _failure(exc)
        case JobRefused():
            code = next((code for kind, code in REFUSALS.items() if isinstance(exc, kind)), "server_busy")
            told = retry_headers(exc.retry_after_s) + wait_headers(exc.queue_ms)
            return ErrorAnswer(503, exc.message, SERVER_ERROR, code, None, told)
        case HTTPException():
            return _http_error(exc)
        case _ if type(exc) in STORED:
            return _stored(exc)
    return ErrorAnswer(500, "The server failed on this request. Its log says why.", SERVER_ERROR, "internal_error")


def is_unexpected(exc: BaseException) -> bool:
    """True for what only a fault of this server explains: log it with its traceback."""
    return describe(exc).code == "internal_error" and not isinstance(exc, RequestFailed)


def retry_headers(retry_after_s: float) -> tuple[tuple[str, str], ...]:
    """`Retry-After` in whole seconds, 1..60; where the wait is longer, SDKs are told not to retry by themselves."""
    whole_s = max(1, math.ceil(retry_after_s)) if math.isfinite(retry_after_s) else MAX_RETRY_AFTER_S + 1
    if whole_s <= MAX_RETRY_AFTER_S:
        return (("Retry-After", str(whole_s)),)
    return (("Retry-After", str(MAX_RETRY_AFTER_S)), ("x-should-retry", "false"))


def wait_headers(queue_ms: float | None) -> tuple[tuple[str, str], ...]:
    """How long the request had waited in the queue, where it was in one."""
    return () if queue_ms is None else ((QUEUE_WAIT_HEADER, str(round(queue_ms))),)


def _failure(exc: RequestFailed) -> ErrorAnswer:
    status, code = FAILURES.get(exc.code, (500, "internal_error"))
    headers = (retry_headers(RESTART_RETRY_S) if status == 503 else ()) + wait_headers(exc.queue_ms)
    return ErrorAnswer(status, exc.message, INVALID_REQUEST if status < 500 else SERVER_ERROR, code, exc.param, headers)


def _stored(exc: BaseException) -> ErrorAnswer:
    status, code, param = next(answer for kind, answer in STORED.items() if isinstance(exc, kind))
    headers = NO_RETRY if status in (409, 507) else ()
    return ErrorAnswer(status, str(exc), INVALID_REQUEST if status < 500 else SERVER_ERROR, code, param, headers)


def http_error(status: int) -> ErrorAnswer:
    """For a status that HTTP itself explains."""
    if status >= 500:
        return ErrorAnswer(500, "The server failed on this request. Its log says why.", SERVER_ERROR, "internal_error")
    code, message = HTTP_ERRORS.get(status, HTTP_ERRORS[400])
    return ErrorAnswer(status, message, INVALID_REQUEST, code)


def _http_error(exc: HTTPException) -> ErrorAnswer:
    error = http_error(exc.code or 500)
    if isinstance(exc, MethodNotAllowed) and exc.valid_methods:
        allowed = ", ".join(sorted(exc.valid_methods))
        return error._replace(message=f"{error.message} Allowed: {allowed}.", headers=(("Allow", allowed),))
    return error
