"""What the route tests share: request bodies, and reading of answers."""

import json
import os
from pathlib import Path
from typing import Any

from tasks.settings import Settings, load_settings
from tests.unit.fake_jobs import CHAT, EMBED

MESSAGES = [{"role": "user", "content": "hi"}]
POSTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": CHAT, "messages": MESSAGES}),
    ("/v1/completions", {"model": CHAT, "prompt": "hi"}),
    ("/v1/embeddings", {"model": EMBED, "input": "hi"}),
    ("/v1/responses", {"model": CHAT, "input": "hi"}),
]


def settings(**values: Any) -> Settings:
    """Defaults but for `values`; no `.env`."""
    return load_settings(env_file=Path(os.devnull), **values)


async def is_error(response: Any, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status
    assert response.content_type == "application/json"
    body = json.loads(await response.get_data())
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert code is None or body["error"]["code"] == code
    assert response.headers["x-request-id"]
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    error: dict[str, Any] = body["error"]
    return error


async def read(response: Any) -> bytes:
    data: bytes = await response.get_data()
    return data


def chunks(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]
