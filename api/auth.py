"""The API key: `Authorization: Bearer KEY`, for everything but /health."""

from typing import Any, cast

from quart import Request

from api.errors import InvalidApiKey
from api.keys import NOBODY, ApiKeys, Caller

OPEN_PATHS = ("/health", "/v1/health")
CALLER = "lis.caller"  #: scope key of the request's Caller


def check_key(path: str, authorization: str | None, keys: ApiKeys) -> Caller:
    """Who asks. Raises InvalidApiKey. No key configured: everything is open, and nobody has a name.

    The scheme's case is free (RFC 9110, 11.1).
    """
    if not keys or path in OPEN_PATHS:
        return NOBODY
    scheme, _, token = (authorization or "").strip().partition(" ")
    caller = keys.find(token.strip().encode("latin-1", "replace"))  # header bytes reach the app as latin-1
    if scheme.lower() != "bearer" or caller is None:
        raise InvalidApiKey
    return caller


def admit(request: Request, keys: ApiKeys) -> None:
    """Let the request in, and note who sent it. Raises InvalidApiKey."""
    caller = check_key(request.path, request.headers.get("Authorization"), keys)
    cast(dict[str, Any], request.scope)[CALLER] = caller


def caller_of(request: Request) -> Caller:
    """Who sent a request that was let in."""
    caller: Caller = cast(dict[str, Any], request.scope).get(CALLER, NOBODY)
    return caller
