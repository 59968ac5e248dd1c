"""Tools and whether they are to be called."""

from typing import Any, NamedTuple

from api.protocol.fields import Fields, InvalidRequest, check_plain, kind, unsupported
from api.protocol.response_format import schema_grammar
from tasks.contracts import ToolChoice

Tools = list[dict[str, Any]]

CHOICES = 'one of "none", "auto" and "required", or an object that names a function'


class ToolUse(NamedTuple):
    """The fields of GenerateRequest about tools."""

    tools: Tools | None = None
    choice: ToolChoice = ToolChoice.AUTO
    name: str | None = None
    parallel: bool = True


def read_tools(fields: Fields) -> ToolUse:
    """`tools`, `tool_choice` and `parallel_tool_calls`.

    Parameters that calls must conform to (a forced call's, a `strict` function's) are checked for being enforceable.
    Raises InvalidRequest naming what is wrong.
    """
    tools = fields.items("tools") or []
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    parallel = fields.boolean("parallel_tool_calls")
    use = _choose(fields, tools)
    if use.tools is None:
        return use
    for index, tool in enumerate(tools):
        if tool in use.tools:
            _check_parameters(tool["function"], f"tools[{index}].function", use)
    return use._replace(parallel=parallel is not False)


def _choose(fields: Fields, tools: Tools) -> ToolUse:
    choice = fields.get("tool_choice")
    if choice == "none":
        return ToolUse()
    if choice in (None, "auto"):
        return ToolUse(tools or None)
    if choice != "required" and not isinstance(choice, dict):
        raise InvalidRequest(f"'tool_choice' must be {CHOICES}.", "tool_choice")
    if not tools:
        raise InvalidRequest("'tool_choice' asks for a call, and 'tools' has none to call.", "tool_choice")
    if choice == "required":
        return ToolUse(tools, ToolChoice.REQUIRED)
    inner = Fields(choice, "tool_choice")
    given = inner.required_string("type")
    if given == "function":
        return ToolUse(tools, ToolChoice.REQUIRED, _known_name(inner, tools))
    if given == "allowed_tools":
        return _allowed(inner, tools)
    raise unsupported("tool_choice.type", '\'tool_choice.type\' may only be "function" or "allowed_tools".')


def _allowed(fields: Fields, tools: Tools) -> ToolUse:
    """`allowed_tools`: only some of the tools, and whether one of them must be called. The others are left out."""
    given = fields.mapping("allowed_tools")
    if given is None:
        name = fields.name("allowed_tools")
        raise InvalidRequest(f"'{name}' is missing; it must be an object.", name)
    inner = Fields(given, fields.name("allowed_tools"))
    mode = inner.required_string("mode")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f'\'{inner.name("mode")}\' must be "auto" or "required".', inner.name("mode"))
    names = set()
    for index, item in enumerate(inner.items("tools") or []):
        path = f"{inner.name('tools')}[{index}]"
        if not isinstance(item, dict):
            raise InvalidRequest(f"'{path}' must be an object, not {kind(item)}.", path)
        names.add(_known_name(Fields(item, path), tools))
    if not names:
        raise InvalidRequest(f"'{inner.name('tools')}' must name at least one function.", inner.name("tools"))
    left = [tool for tool in tools if tool["function"]["name"] in names]
    return ToolUse(left, ToolChoice(mode))


def _known_name(fields: Fields, tools: Tools) -> str:
    """`function.name`, which must be that of a tool."""
    function = fields.mapping("function")
    if function is None:
        name = fields.name("function")
        raise InvalidRequest(f"'{name}' is missing; it must be an object like {{\"name\": …}}.", name)
    inner = Fields(function, fields.name("function"))
    wanted = inner.required_string("name")
    names = list(dict.fromkeys(tool["function"]["name"] for tool in tools))
    if wanted not in names:
        known = ", ".join(names)[:300]
        raise InvalidRequest(
            f"'{inner.name('name')}' is none of the functions in 'tools': {known}.", inner.name("name")
        )
    return wanted


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


def _check_parameters(function: dict[str, Any], path: str, use: ToolUse) -> None:
    is_forced = use.choice is ToolChoice.REQUIRED and use.name in (None, function["name"])
    parameters = function.get("parameters")
    if parameters and (is_forced or function.get("strict")):
        is_named = "$ref" in parameters  # what it refers to says what it is
        schema_grammar(parameters if is_named else parameters | {"type": "object"}, f"{path}.parameters")
