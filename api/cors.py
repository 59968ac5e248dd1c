"""CORS for browsers, on every answer, errors included: without it a page sees an opaque network error.

Written here rather than taken from quart-cors: preflights must pass before the key is asked for, for any path.
"""

from collections.abc import Sequence

from quart import Response

EXPOSED = "x-request-id, retry-after, x-should-retry, x-truncated-inputs, x-queue-wait-ms, idempotent-replayed"
METHODS = "GET, HEAD, POST, OPTIONS"
PREFLIGHT_TTL_S = 86_400


def allowed_origin(origins: Sequence[str], origin: str | None) -> str | None:
    """The `Access-Control-Allow-Origin` for a request from `origin`; None: no header."""
    if "*" in origins:
        return "*"
    return origin if origin in origins else None


def add_cors(response: Response, origins: Sequence[str], origin: str | None) -> None:
    if "*" not in origins:
        response.headers.add("Vary", "Origin")  # a cache must not give one origin's answer to another
    allowed = allowed_origin(origins, origin)
    if allowed is not None:
        response.headers["Access-Control-Allow-Origin"] = allowed
        response.headers["Access-Control-Expose-Headers"] = EXPOSED


def preflight(requested_headers: str | None) -> Response:
    """204 for any path, with no key asked: browsers put no credentials on a preflight."""
    response = Response(b"", status=204)
    response.headers["Access-Control-Allow-Methods"] = METHODS
    response.headers["Access-Control-Allow-Headers"] = requested_headers or "authorization, content-type"
    response.headers["Access-Control-Max-Age"] = str(PREFLIGHT_TTL_S)
    response.headers["Allow"] = METHODS
    return response
