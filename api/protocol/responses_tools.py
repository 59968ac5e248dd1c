"""`tools` and `tool_choice` of /v1/responses in the shapes that chat completions have. Pure."""

from typing import Any

from api.protocol.fields import Fields, InvalidRequest, kind, unsupported

FUNCTION_KEYS = ("name", "description", "parameters", "strict")
CHOICES = ("none", "auto", "required")


def chat_tools(fields: Fields) -> list[dict[str, Any]]:
    """Functions, nested as chat has them; what is in them is left to chat's reader. Refuses built-in tools."""
    nested = []
    for index, tool in enumerate(fields.items("tools") or []):
        path = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise InvalidRequest(f"'{path}' must be an object, not {kind(tool)}.", path)
        given = Fields(tool, path).required_string("type")
        if given != "function":
            message = f"'{path}' is of type '{given[:100]}'; only functions are supported: no built-in tools run here."
            raise unsupported(f"{path}.type", message)
        function = {key: tool[key] for key in FUNCTION_KEYS if tool.get(key) is not None}
        nested.append({"type": "function", "function": function})
    return nested


def chat_choice(fields: Fields) -> str | dict[str, Any] | None:
    """A word, a function or `allowed_tools`. Refuses the choice of a built-in tool."""
    choice = fields.get("tool_choice")
    if choice is None or choice in CHOICES:
        return choice  # type: ignore[no-any-return]
    if not isinstance(choice, dict):
        raise InvalidRequest(f"'tool_choice' must be an object or one of: {', '.join(CHOICES)}.", "tool_choice")
    inner = Fields(choice, "tool_choice")
    match inner.required_string("type"):
        case "function":
            return {"type": "function", "function": {"name": choice.get("name")}}
        case "allowed_tools":
            return {"type": "allowed_tools", "allowed_tools": _allowed(inner)}
        case given:
            message = f"'tool_choice.type' is '{given[:100]}'; only 'function' and 'allowed_tools' are supported."
            raise unsupported("tool_choice.type", message)


def _allowed(choice: Fields) -> dict[str, Any]:
    nested = []
    for index, tool in enumerate(choice.items("tools") or []):
        path = f"tool_choice.tools[{index}]"
        if not isinstance(tool, dict):
            raise InvalidRequest(f"'{path}' must be an object, not {kind(tool)}.", path)
        if tool.get("type", "function") != "function":
            raise unsupported(f"{path}.type", f"'{path}.type' may only be \"function\".")
        nested.append({"type": "function", "function": {"name": tool.get("name")}})
    return {"mode": choice.get("mode"), "tools": nested}
