"""Fields that are known and not served: refused unless their value asks for nothing.

A field that changes the answer is never silently ignored. Delete a line here when the feature comes.
"""

from typing import Any

from api.protocol.fields import Fields, unsupported

#: field -> what to say when its value is neither null nor empty
NEVER_CHAT = {
    "functions": "'functions' is the older form of tools and is not supported; send 'tools'.",
    "audio": "Audio output ('audio') is not supported: this model writes text only.",
    "web_search_options": "Web search ('web_search_options') is not supported.",
}


def refuse_unsupported_chat(fields: Fields) -> None:
    """Raises InvalidRequest (`unsupported_value`) for the first chat field that asks for something not served."""
    nothing: tuple[Any, ...] = (None, "", [], {})
    for name, message in NEVER_CHAT.items():
        value = fields.get(name)
        if value not in nothing or (name == "web_search_options" and value == {}):  # no options: a search with defaults
            raise unsupported(name, message)
    if fields.get("function_call") not in (None, "none", "auto"):
        raise unsupported("function_call", "'function_call' is not supported; send 'tools'.")
    if fields.boolean("add_generation_prompt") is False:
        message = "'add_generation_prompt' may only be true: a prompt always ends where the assistant's turn begins."
        raise unsupported("add_generation_prompt", message)
    modalities = fields.items("modalities") or []
    if any(item != "text" for item in modalities):
        raise unsupported("modalities", "'modalities' may only be [\"text\"]: this model writes text only.")
