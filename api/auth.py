"""The API key: `Authorization: Bearer KEY`, for everything but /health."""

import hmac

from api.errors import InvalidApiKey

OPEN_PATHS = ("/health", "/v1/health")


def check_key(path: str, authorization: str | None, api_key: str) -> None:
    """Raises InvalidApiKey. No key configured: everything is open. The scheme's case is free (RFC 9110, 11.1)."""
    if not api_key or path in OPEN_PATHS:
        return
    scheme, _, token = (authorization or "").strip().partition(" ")
    # bytes: compare_digest takes only ASCII str. Header bytes reach the app as latin-1
    given = token.strip().encode("latin-1", "replace")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given, api_key.strip().encode()):
        raise InvalidApiKey
