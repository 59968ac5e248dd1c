"""Tool definitions. They are rendered into the prompt; the model answers in text."""

from typing import Any

from api.protocol.fields import Fields, InvalidRequest, check_plain, kind, unsupported


def read_tools(fields: Fields) -> list[dict[str, Any]] | None:
    """`tools` as they came, or None when there are none or `tool_choice` is `none`. Names the bad one."""
    tools = fields.items("tools") or []
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    choice = fields.get("tool_choice")
    if choice == "none":
        return None
    if choice == "required" or isinstance(choice, dict):
        raise unsupported(
            "tool_choice", '\'tool_choice\' may only be "none" or "auto": forced tool calls are not supported.'
        )
    if choice not in (None, "auto"):
        raise InvalidRequest('\'tool_choice\' must be "none" or "auto".', "tool_choice")
    return tools or None


def _check_tool(tool: Any, path: str) -> None:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"'{path}' must be an object, not {kind(tool)}.", path)
    fields = Fields(tool, path)
    if fields.required_string("type") != "function":
        raise unsupported(f"{path}.type", f"'{path}.type' may only be \"function\".")
    function = fields.mapping("function")
    if function is None:
        raise InvalidRequest(f"'{path}.function' is missing; it must be an object.", f"{path}.function")
    inner = Fields(function, f"{path}.function")
    inner.required_string("name")
    inner.string("description")
    inner.mapping("parameters")
    inner.boolean("strict")
    check_plain(tool, path)
