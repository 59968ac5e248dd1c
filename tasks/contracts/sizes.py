"""How large a request is, without its text."""

from typing import Any

import msgspec

from tasks.contracts.requests import EmbedRequest, GenerateRequest
from tasks.contracts.workers import Work


def work_of(request: GenerateRequest | EmbedRequest) -> Work:
    if isinstance(request, EmbedRequest):
        return Work("embedding", sum(map(len, request.texts)), share=request.share, caller=request.caller)
    return Work(
        "chat",
        _prompt_chars(request),
        max_tokens=request.max_tokens or 0,
        choices=request.n * max(1, len(request.prompts)),
        share=request.share,
        caller=request.caller,
    )


def _prompt_chars(request: GenerateRequest) -> int:
    if request.messages is None:
        return sum(map(len, request.prompts)) + len(request.suffix or "")
    chars = sum(_message_chars(message) for message in request.messages)
    return chars + (len(msgspec.json.encode(request.tools)) if request.tools else 0)


def _message_chars(message: dict[str, Any]) -> int:
    content, calls = message.get("content"), message.get("tool_calls")
    return (len(content) if isinstance(content, str) else 0) + (len(msgspec.json.encode(calls)) if calls else 0)
