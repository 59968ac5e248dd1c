"""OpenAI messages -> plain ones: text content, and only the keys a chat template knows."""

from collections.abc import Callable
from typing import Any

import msgspec

from api.protocol.fields import Fields, InvalidRequest, check_plain, kind, unsupported

#: role in the request -> role in the plain message; `function` is the older name of `tool`
ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
#: part type -> the key that holds its text
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
OTHER_PARTS = frozenset(
    [
        "image_url",
        "input_image",
        "image",
        "input_audio",
        "audio",
        "audio_url",
        "video",
        "video_url",
        "input_video",
        "file",
        "input_file",
    ]
)


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """At least one message. Raises InvalidRequest naming `messages[i]`, and the part of it that is wrong."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("'messages' must be a list with at least one message.", "messages")
    return [read_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def read_message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest(f"'{path}' must be an object with 'role' and 'content', not {kind(message)}.", path)
    fields = Fields(message, path)
    given = fields.get("role")
    if not isinstance(given, str) or given not in ROLES:
        raise InvalidRequest(f"'{path}.role' must be one of: {', '.join(ROLES)}.", f"{path}.role")
    plain: dict[str, Any] = {"role": ROLES[given]}
    if name := fields.string("name"):
        plain["name"] = name
    if plain["role"] == "tool" and (call_id := fields.string("tool_call_id")):
        plain["tool_call_id"] = call_id
    if plain["role"] == "assistant":
        _read_assistant(fields, plain)
    else:
        plain["content"] = read_content(fields)
    return plain


def _read_assistant(fields: Fields, plain: dict[str, Any]) -> None:
    """Content may be missing where the turn says something else: tool calls, a refusal, its reasoning."""
    calls = _read_tool_calls(fields)
    refusal = fields.string("refusal")
    reasoning = fields.string("reasoning_content")
    if calls:
        plain["tool_calls"] = calls
    if reasoning:
        plain["reasoning_content"] = reasoning
    if fields.get("content") in (None, []) and (calls or refusal or reasoning):
        plain["content"] = refusal or ""  # not None: templates that print the content unasked would print "None"
    else:
        plain["content"] = read_content(fields)


def read_content(fields: Fields, key: str = "content") -> str:
    """A string, or a list of text parts, as one string."""
    content = fields.get(key)
    name = fields.name(key)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"'{name}' must be a string or a list of text parts, not {kind(content)}.", name)
    if not content:
        raise InvalidRequest(f"'{name}' is an empty list; it must have at least one text part.", name)
    # joined with nothing: a client that cuts a text into parts has its blanks in them
    return "".join(_read_part(part, f"{name}[{index}]") for index, part in enumerate(content))


def _read_part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(
            f'\'{path}\' must be an object like {{"type": "text", "text": …}}, not {kind(part)}.', path
        )
    given = part.get("type")
    if isinstance(given, str) and given in OTHER_PARTS:
        raise unsupported(path, f"'{path}' is of type '{given}', and this model takes text only.")
    if not isinstance(given, str) or given not in TEXT_PARTS:
        raise InvalidRequest(f"'{path}.type' must be \"text\": this model takes text only.", f"{path}.type")
    key = TEXT_PARTS[given]
    if not isinstance(part.get(key), str):
        raise InvalidRequest(f"'{path}.{key}' must be a string, not {kind(part.get(key))}.", f"{path}.{key}")
    return str(part[key])


def _read_tool_calls(fields: Fields) -> list[dict[str, Any]]:
    """Calls of an assistant's turn; `function_call` is the older form, with one call and no id."""
    older = fields.mapping("function_call")
    if older is not None:
        return [{"type": "function", "function": read_function(Fields(older, fields.name("function_call")))}]
    calls = fields.items("tool_calls") or []
    return _each(calls, fields.name("tool_calls"), _read_call)


def _each(items: list[Any], path: str, read: Callable[[Fields], dict[str, Any]]) -> list[dict[str, Any]]:
    result = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise InvalidRequest(f"'{path}[{index}]' must be an object, not {kind(item)}.", f"{path}[{index}]")
        result.append(read(Fields(item, f"{path}[{index}]")))
    return result


def _read_call(fields: Fields) -> dict[str, Any]:
    if fields.get("type") not in (None, "function"):
        raise unsupported(fields.name("type"), f"'{fields.name('type')}' may only be \"function\".")
    function = fields.mapping("function")
    if function is None:
        raise InvalidRequest(f"'{fields.name('function')}' is missing; it must be an object.", fields.name("function"))
    call: dict[str, Any] = {"type": "function", "function": read_function(Fields(function, fields.name("function")))}
    if call_id := fields.string("id"):
        call["id"] = call_id
    return call


def read_function(fields: Fields) -> dict[str, Any]:
    """`arguments` stay a string, whatever is in it; an object, which some clients send, becomes one."""
    arguments = fields.get("arguments")
    if isinstance(arguments, dict):
        check_plain(arguments, fields.name("arguments"))
        arguments = msgspec.json.encode(arguments).decode()
    elif arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        raise fields.wrong("arguments", "a string of JSON")
    return {"name": fields.required_string("name"), "arguments": arguments}
