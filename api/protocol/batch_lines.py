"""One line of a batch's input file: `{"custom_id", "method": "POST", "url", "body"}`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from api.protocol.answers import Generation
from api.protocol.chat import parse_chat
from api.protocol.completions import parse_completion
from api.protocol.embeddings import EmbeddingsBody, parse_embeddings
from api.protocol.fields import InvalidRequest, kind

EMBEDDINGS, CHAT, COMPLETIONS = "/v1/embeddings", "/v1/chat/completions", "/v1/completions"
MODEL_KINDS = {EMBEDDINGS: "embedding", CHAT: "chat", COMPLETIONS: "chat"}  #: by the endpoints that batches have

#: a body as the endpoint itself reads it
Parsed = EmbeddingsBody | Generation
ParseBody = Callable[[dict[str, Any]], Parsed]


class LineInvalid(Exception):
    """`code` is OpenAI's where it has one."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class BatchLine(NamedTuple):
    custom_id: str
    model: str
    parsed: Parsed


def body_parser(endpoint: str, *, max_inputs: int, max_n: int) -> ParseBody:
    """Of a batch's endpoint, with the bounds that a request by itself has."""
    parsers: dict[str, ParseBody] = {
        EMBEDDINGS: partial(parse_embeddings, max_inputs=max_inputs),
        CHAT: partial(parse_chat, max_n=max_n),
        COMPLETIONS: partial(parse_completion, max_n=max_n),
    }
    return parsers[endpoint]


def parse_line(data: bytes, endpoint: str, parse: ParseBody) -> BatchLine:
    """Raises LineInvalid."""
    line = _object(data)
    custom_id = _text(line, "custom_id")
    method, url = _text(line, "method"), _text(line, "url")
    if method.upper() != "POST":
        raise LineInvalid("invalid_method", "'method' must be 'POST'.", "method")
    if url.rstrip("/") != endpoint:
        raise LineInvalid("invalid_url", f"'url' must be the batch's endpoint, '{endpoint}'.", "url")
    body = line.get("body")
    if not isinstance(body, dict):
        code = "missing_required_parameter" if body is None else "invalid_request"
        raise LineInvalid(code, f"'body' must be an object, not {kind(body)}.", "body")
    if body.get("stream"):
        raise LineInvalid("invalid_request", "'body.stream' must be false: a batch does not stream.", "body.stream")
    try:
        parsed = parse(body)
    except InvalidRequest as exc:
        param = f"body.{exc.param}" if exc.param else "body"
        raise LineInvalid(exc.code or "invalid_request", exc.message, param) from None
    model = parsed.model if isinstance(parsed, EmbeddingsBody) else parsed.request.model
    return BatchLine(custom_id, model, parsed)


def _object(data: bytes) -> dict[str, Any]:
    try:
        line = msgspec.json.decode(data)
    except RecursionError:
        raise LineInvalid("invalid_json_line", "The line is nested too deeply.") from None
    except msgspec.DecodeError as exc:
        raise LineInvalid("invalid_json_line", f"The line is not valid JSON in UTF-8: {exc}.") from None
    if not isinstance(line, dict):
        raise LineInvalid("invalid_json_line", f"The line must be a JSON object, not {kind(line)}.")
    return line


def _text(line: dict[str, Any], name: str) -> str:
    value = line.get(name)
    if value is None or value == "":
        raise LineInvalid("missing_required_parameter", f"'{name}' is missing or empty.", name)
    if not isinstance(value, str):
        raise LineInvalid("invalid_request", f"'{name}' must be a string, not {kind(value)}.", name)
    return value
