"""POST /v1/responses: JSON -> a chat body, which chat's reader takes, and what the answer repeats of the request."""

from typing import Any, NamedTuple

from api.protocol.answers import Generation
from api.protocol.chat import parse_chat
from api.protocol.fields import Fields, InvalidRequest
from api.protocol.responses_fields import check_passive, read_metadata, refuse_unsupported, wants_logprobs
from api.protocol.responses_input import read_input
from api.protocol.responses_tools import chat_choice, chat_tools

VERBOSITIES = ("low", "medium", "high")
#: fields that mean something else to chat, or nothing: its reader does not see them
OWN = frozenset(
    [
        "include",
        "input",
        "instructions",
        "logprobs",
        "max_output_tokens",
        "metadata",
        "reasoning",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
    ]
)
#: chat's names, in the messages of its reader -> those of this endpoint; the first that fits
TERMS = (
    ("response_format.json_schema.", "text.format."),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("tool_choice.allowed_tools.", "tool_choice."),
    ("tool_choice.function.", "tool_choice."),
    ("].function.", "]."),
    ("'max_completion_tokens", "'max_output_tokens"),
    ("'max_tokens", "'max_output_tokens"),
    ("'reasoning_effort", "'reasoning.effort"),
    ("'messages", "'input"),
)


class ResponsesBody(NamedTuple):
    generation: Generation
    echo: dict[str, Any]  #: members of the answer that say what was asked for


def parse_response(body: dict[str, Any]) -> ResponsesBody:
    """Raises InvalidRequest. Unknown fields go to chat's reader: llama.cpp's sampling fields are taken here, too."""
    fields = Fields(body)
    fields.required_string("model")
    refuse_unsupported(fields)
    check_passive(fields)
    text = Fields(fields.mapping("text") or {}, "text")
    reasoning = Fields(fields.mapping("reasoning") or {}, "reasoning")
    chat: dict[str, Any] = {key: value for key, value in body.items() if key not in OWN}
    chat |= {
        "messages": read_input(fields),
        "tools": chat_tools(fields),
        "tool_choice": chat_choice(fields),
        "response_format": _chat_format(text),
        "max_completion_tokens": fields.integer("max_output_tokens", 1),
    }
    if effort := reasoning.string("effort"):
        chat["reasoning_effort"] = effort
    if wants_logprobs(fields):
        chat["logprobs"] = True
    try:
        generation = parse_chat({key: value for key, value in chat.items() if value is not None}, max_n=1)
    except InvalidRequest as exc:
        raise InvalidRequest(own_terms(exc.message), own_param(exc.param), exc.code) from None
    return ResponsesBody(generation, _echo(fields, text, reasoning, generation))


def own_terms(message: str) -> str:
    """A message of chat's reader or of the worker, with the names this endpoint has for the fields it quotes."""
    for theirs, ours in TERMS:
        message = message.replace(theirs, ours)
    return message


def own_param(param: str | None) -> str | None:
    return None if param is None else own_terms(f"'{param}'")[1:-1]


def _chat_format(text: Fields) -> dict[str, Any] | None:
    """`text.format` in the shape of `response_format`; its details are left to chat's reader."""
    verbosity = text.string("verbosity")
    if verbosity is not None and verbosity not in VERBOSITIES:
        raise InvalidRequest(f"'text.verbosity' must be one of: {', '.join(VERBOSITIES)}.", "text.verbosity")
    given = text.mapping("format")
    if not given or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {key: value for key, value in given.items() if key != "type"}}


def _echo(fields: Fields, text: Fields, reasoning: Fields, generation: Generation) -> dict[str, Any]:
    sampling = generation.request.sampling
    return {
        "background": False,
        "conversation": None,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.integer("max_output_tokens"),
        "max_tool_calls": fields.integer("max_tool_calls"),
        "metadata": read_metadata(fields),
        "parallel_tool_calls": fields.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "prompt": None,
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": {
            "format": text.get("format") or {"type": "text"},
            "verbosity": text.get("verbosity") or VERBOSITIES[1],
        },
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.get("tools") or [],
        "top_logprobs": fields.integer("top_logprobs") or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": fields.get("user"),
    }
