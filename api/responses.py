"""JSON answers, and what every answer carries: the request id and CORS headers."""

from typing import Any

import msgspec
from quart import Response, g

from tasks.contracts import new_request_id

JSON_TYPE = "application/json"


def json_response(data: Any, status: int = 200) -> Response:
    """`data` is bytes of JSON, or what becomes them."""
    body = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return Response(body, status=status, content_type=JSON_TYPE)


def request_id() -> str:
    """This request's id: the job's where there is one (`set_request_id`), else its own."""
    if "request_id" not in g:
        g.request_id = new_request_id("req")
    return str(g.request_id)


def set_request_id(value: str) -> None:
    g.request_id = value
