"""The table from exceptions to error answers."""

import math
from typing import Any

import pytest
from werkzeug.exceptions import BadRequest, ImATeapot, MethodNotAllowed, NotFound, RequestTimeout, ServiceUnavailable

from api import errors
from api.errors import BodyTooLarge, InvalidApiKey, UnsupportedMediaType, describe, is_unexpected, retry_headers
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

BAD, AUTH, SERVER = "invalid_request_error", "authentication_error", "server_error"


@pytest.mark.parametrize(
    ("exc", "status", "kind", "code", "param"),
    [
        (InvalidRequest("m", "temperature"), 400, BAD, None, "temperature"),
        (InvalidRequest("m", "n", "unsupported_value"), 400, BAD, "unsupported_value", "n"),
        (InvalidApiKey(), 401, AUTH, "invalid_api_key", None),
        (ModelNotFound("x", ["a"]), 404, BAD, "model_not_found", "model"),
        (WrongModelKind("m"), 400, BAD, None, "model"),
        (BodyTooLarge(5), 413, BAD, "request_too_large", None),
        (UnsupportedMediaType("m"), 415, BAD, "unsupported_media_type", None),
        (ServerBusy("m"), 503, SERVER, "server_busy", None),
        (ModelLoading("m"), 503, SERVER, "model_loading", None),
        (QueueUnavailable("m"), 503, SERVER, "queue_unavailable", None),
        (JobRefused("m"), 503, SERVER, "server_busy", None),
        (RequestFailed(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "m", "p"), 400, BAD, "context_length_exceeded", "p"),
        (RequestFailed(ErrorCode.INVALID_REQUEST, "m", "messages"), 400, BAD, None, "messages"),
        (RequestFailed(ErrorCode.ENGINE_ERROR, "m"), 500, SERVER, "internal_error", None),
        (RequestFailed(ErrorCode.ENGINE_LOST, "m"), 500, SERVER, "worker_lost", None),
        (RequestFailed(ErrorCode.WORKER_LOST, "m"), 500, SERVER, "worker_lost", None),
        (RequestFailed(ErrorCode.WORKER_SHUTDOWN, "m"), 503, SERVER, "queue_unavailable", None),
        (BadRequest(), 400, BAD, "bad_request", None),
        (NotFound(), 404, BAD, "unknown_url", None),
        (MethodNotAllowed(["POST"]), 405, BAD, "method_not_allowed", None),
        (RequestTimeout(), 408, BAD, "request_timeout", None),
        (ImATeapot(), 418, BAD, "bad_request", None),
        (ServiceUnavailable("/secret"), 500, SERVER, "internal_error", None),
        (ValueError("/secret"), 500, SERVER, "internal_error", None),
    ],
)  # fmt: skip
def test_answer(exc: Exception, status: int, kind: str, code: str | None, param: str | None) -> None:
    answer = describe(exc)
    assert (answer.status, answer.type, answer.code, answer.param) == (status, kind, code, param)
    assert answer.message
    assert "secret" not in answer.message
    assert list(answer.body()["error"]) == ["message", "type", "param", "code"]
    assert (dict(answer.headers).get("Retry-After", "").isdigit()) == (status == 503)


def test_every_failure_of_a_worker_has_its_line() -> None:
    assert set(errors.FAILURES) == set(ErrorCode)


@pytest.mark.parametrize(
    ("exc", "expected"),
    [(ValueError(), True), (ServiceUnavailable(), True), (NotFound(), False), (ServerBusy("m"), False)],
)
def test_only_faults_of_the_server_are_logged_with_a_traceback(exc: Exception, expected: bool) -> None:
    assert is_unexpected(exc) is expected


@pytest.mark.parametrize(
    ("wait_s", "headers"),
    [
        (-5, {"Retry-After": "1"}),
        (0, {"Retry-After": "1"}),
        (1.2, {"Retry-After": "2"}),
        (60, {"Retry-After": "60"}),
        (60.1, {"Retry-After": "60", "x-should-retry": "false"}),
        (1e9, {"Retry-After": "60", "x-should-retry": "false"}),
        (math.inf, {"Retry-After": "60", "x-should-retry": "false"}),
        (math.nan, {"Retry-After": "60", "x-should-retry": "false"}),
    ],
)
def test_retry_after_is_whole_seconds_up_to_60(wait_s: float, headers: dict[str, Any]) -> None:
    assert dict(retry_headers(wait_s)) == headers


def test_405_lists_the_methods() -> None:
    assert dict(describe(MethodNotAllowed(["POST", "OPTIONS"])).headers) == {"Allow": "OPTIONS, POST"}
