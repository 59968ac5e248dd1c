"""Fields that are known and not served: refused unless their value asks for nothing.

A field that changes the answer is never silently ignored. Delete a line here when the feature comes.
"""

from typing import Any

from api.protocol.fields import Fields, unsupported

#: field -> what to say when its value is neither null nor empty
NEVER_CHAT = {
    "functions": "'functions' is the older form of tools and is not supported; send 'tools'.",
    "grammar": "Constrained output ('grammar') is not supported.",
    "json_schema": "Constrained output ('json_schema') is not supported.",
    "audio": "Audio output ('audio') is not supported: this model writes text only.",
    "web_search_options": "Web search ('web_search_options') is not supported.",
}
NEVER_COMPLETIONS = {
    "suffix": "Insertion before a 'suffix' is not supported.",
    "grammar": NEVER_CHAT["grammar"],
    "json_schema": NEVER_CHAT["json_schema"],
}


def refuse_unsupported_chat(fields: Fields) -> None:
    """Raises InvalidRequest (`unsupported_value`) for the first chat field that asks for something not served."""
    _refuse_never(fields, NEVER_CHAT)
    _refuse_choices(fields, "n")
    _refuse_logit_bias(fields)
    _refuse_response_format(fields)
    if fields.boolean("logprobs"):
        raise unsupported("logprobs", "'logprobs' is not supported.")
    if fields.integer("top_logprobs", 0):
        raise unsupported("top_logprobs", "'top_logprobs' is not supported.")
    if fields.get("function_call") not in (None, "none", "auto"):
        raise unsupported("function_call", "'function_call' is not supported; send 'tools'.")
    modalities = fields.items("modalities") or []
    if any(item != "text" for item in modalities):
        raise unsupported("modalities", "'modalities' may only be [\"text\"]: this model writes text only.")


def refuse_unsupported_completions(fields: Fields) -> None:
    """As `refuse_unsupported_chat`, for /v1/completions."""
    _refuse_never(fields, NEVER_COMPLETIONS)
    _refuse_choices(fields, "n")
    _refuse_choices(fields, "best_of")
    _refuse_logit_bias(fields)
    _refuse_response_format(fields)
    if fields.get("logprobs") is not None and fields.get("logprobs") is not False:
        raise unsupported("logprobs", "'logprobs' is not supported.")


def _refuse_never(fields: Fields, never: dict[str, str]) -> None:
    nothing: tuple[Any, ...] = (None, "", [], {})
    for name, message in never.items():
        if fields.get(name) not in nothing:
            raise unsupported(name, message)


def _refuse_choices(fields: Fields, name: str) -> None:
    if (fields.integer(name, 1) or 1) > 1:
        raise unsupported(name, f"'{name}' above 1 is not supported: one answer per request.")


def _refuse_logit_bias(fields: Fields) -> None:
    if fields.mapping("logit_bias"):
        raise unsupported("logit_bias", "'logit_bias' is not supported.")


def _refuse_response_format(fields: Fields) -> None:
    given = fields.mapping("response_format")
    if given and given.get("type") != "text":
        raise unsupported(
            "response_format", '\'response_format\' may only be {"type": "text"}: constrained output is not supported.'
        )
