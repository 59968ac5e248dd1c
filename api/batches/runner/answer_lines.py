"""Lines of a batch's output and error files, in OpenAI's shape. Pure.

Ids follow from the batch and the line's number: a line that is done again keeps them.
"""

import hashlib
from typing import Any

import msgspec

from api.batches.runner.windows import WindowLine
from api.errors import ErrorAnswer

PREFIXES = {"/v1/embeddings": "embd", "/v1/chat/completions": "chatcmpl", "/v1/completions": "cmpl"}


def request_id(batch_id: str, endpoint: str, number: int) -> str:
    return f"{PREFIXES[endpoint]}-{_digest(batch_id, number, 'request')}"


def answer_line(batch_id: str, line: WindowLine, request: str, body: Any, status: int = 200) -> bytes:
    """What the endpoint answered. `body` is anything that msgspec makes JSON of."""
    return _line(batch_id, line, {"status_code": status, "request_id": request, "body": body}, None)


def error_line(batch_id: str, line: WindowLine, request: str, error: ErrorAnswer) -> bytes:
    return answer_line(batch_id, line, request, error.body(), error.status)


def unanswered_line(batch_id: str, line: WindowLine, code: str, message: str) -> bytes:
    """Of a line that was not run to its end."""
    return _line(batch_id, line, None, {"code": code, "message": message})


def _line(batch_id: str, line: WindowLine, response: Any, error: Any) -> bytes:
    line_id = f"batch_req_{_digest(batch_id, line.number, 'line')}"
    return (
        msgspec.json.encode({"id": line_id, "custom_id": line.custom_id, "response": response, "error": error}) + b"\n"
    )


def _digest(batch_id: str, number: int, what: str) -> str:
    return hashlib.sha256(f"{batch_id} {number} {what}".encode()).hexdigest()[:24]
