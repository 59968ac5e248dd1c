"""The OpenAPI 3.1 description of the HTTP API."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from api.openapi.answers import ANSWERS
from api.openapi.bodies import bodies
from api.openapi.paths import EXTRA_HEADERS, HEADERS, error_responses, paths
from api.openapi.stored import STORED, stored_paths
from tasks.settings import Settings

ABOUT = """OpenAI's API for the models of one machine, with a queue before them.

Every error is `{"error": {"message", "type", "param", "code"}}`. Members of a request that are not described are
ignored; null is the same as absent. A URL takes HEAD and OPTIONS where it takes GET or POST, an unknown one is a 404,
and a method that a URL does not take a 405 with `Allow`."""


def document(settings: Settings) -> dict[str, Any]:
    """As JSON. It depends on the settings' limits alone, and needs about 1 ms."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "local-inference-server", "version": _version(), "description": ABOUT},
        "servers": [{"url": "/v1"}, {"url": "/"}],
        "security": [{"key": []}],
        "paths": paths() | stored_paths(),
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "Asked for where the server has keys."}
            },
            "parameters": EXTRA_HEADERS,
            "headers": HEADERS,
            "responses": error_responses(),
            "schemas": bodies(settings) | ANSWERS | STORED,
        },
    }


def _version() -> str:
    try:
        return version("local-inference-server")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
