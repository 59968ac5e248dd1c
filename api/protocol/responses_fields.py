"""Fields of /v1/responses that are refused, and those that are only checked because no answer depends on them."""

from typing import Any

from api.protocol.fields import Fields, InvalidRequest, check_plain, kind, unsupported

MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512  # OpenAI's
MAX_TOP_LOGPROBS = 20

NOT_STORED = "this server keeps no responses"
#: field -> why it is refused when it asks for something
REFUSED = {
    "store": f"'store' may only be false: {NOT_STORED}.",
    "previous_response_id": f"'previous_response_id' is not supported: {NOT_STORED}; send the conversation in 'input'.",
    "conversation": f"'conversation' is not supported: {NOT_STORED}; send the conversation in 'input'.",
    "background": "'background' may only be false: an answer is made while its client waits.",
    "prompt": "'prompt' is not supported: no prompt templates are kept; send 'instructions' and 'input'.",
    "context_management": "'context_management' is not supported: the conversation is not shortened here.",
    "moderation": "'moderation' is not supported.",
}
#: chat's field -> this endpoint's
MOVED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "functions": "tools",
}
LOGPROBS = "message.output_text.logprobs"
#: they concern tools and inputs that are refused, or encrypt what is sent in plain text here
HARMLESS_INCLUDES = frozenset(
    [
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    ]
)
SUMMARIES = ("auto", "concise", "detailed")
#: `auto` drops what does not fit. Here that is always a 400, so whatever is answered is the same
TRUNCATIONS = ("auto", "disabled")


def refuse_unsupported(fields: Fields) -> None:
    """Raises InvalidRequest (`unsupported_value`) for the first field that asks for something not served."""
    for name, message in REFUSED.items():
        if fields.get(name) not in (None, False, "", [], {}):
            raise unsupported(name, message)
    for name, ours in MOVED.items():
        if fields.get(name) is not None:
            raise unsupported(name, f"'{name}' is a field of chat completions; here it is '{ours}'.")
    if (fields.integer("n", 1) or 1) > 1:
        raise unsupported("n", "'n' above 1 is not supported: a response is one answer.")


def check_passive(fields: Fields) -> None:
    """Types of what changes no answer, so that a client learns of its mistakes."""
    for name in ("store", "background", "parallel_tool_calls", "stream"):
        fields.boolean(name)
    for name in ("user", "safety_identifier", "prompt_cache_key", "service_tier"):
        fields.string(name)
    for name in ("tools", "tool_choice", "text"):
        check_plain(fields.get(name), name)  # the answer repeats them
    fields.integer("max_tool_calls", 1)  # of built-in tools, and there are none
    Fields(fields.mapping("stream_options") or {}, "stream_options").boolean("include_obfuscation")
    _one_of(fields, "truncation", TRUNCATIONS)
    reasoning = Fields(fields.mapping("reasoning") or {}, "reasoning")
    for name in ("summary", "generate_summary"):
        _one_of(reasoning, name, SUMMARIES)
    read_metadata(fields)


def wants_logprobs(fields: Fields) -> bool:
    """`include` names them, or `top_logprobs` asks for alternatives."""
    included = fields.items("include") or []
    for index, name in enumerate(included):
        if not isinstance(name, str):
            raise InvalidRequest(f"'include[{index}]' must be a string, not {kind(name)}.", f"include[{index}]")
        if name != LOGPROBS and name not in HARMLESS_INCLUDES:
            raise unsupported(f"include[{index}]", f"'include[{index}]' is '{name[:100]}', which is not supported.")
    return LOGPROBS in included or bool(fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS))


def read_metadata(fields: Fields) -> dict[str, Any]:
    """At most 16 pairs of strings, as OpenAI has it."""
    given = fields.mapping("metadata") or {}
    if len(given) > MAX_METADATA:
        raise InvalidRequest(f"'metadata' has {len(given)} pairs; at most {MAX_METADATA} are taken.", "metadata")
    for key, value in given.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"'metadata' may hold strings only, not {kind(value)}.", "metadata")
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS:
            limits = f"keys of at most {MAX_KEY_CHARS} and values of at most {MAX_VALUE_CHARS} characters"
            raise InvalidRequest(f"'metadata' takes {limits}.", "metadata")
    return given


def _one_of(fields: Fields, key: str, values: tuple[str, ...]) -> None:
    value = fields.string(key)
    if value is not None and value not in values:
        raise InvalidRequest(f"'{fields.name(key)}' must be one of: {', '.join(values)}.", fields.name(key))
