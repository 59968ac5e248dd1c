"""OpenAI messages in the forms that chat templates accept. Pure.

Templates differ in what they refuse: a system turn, two turns of one role, an assistant's greeting, tools. `candidates`
gives the messages in their own form first, then in ever more common ones; nothing that was said is left out of any.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

BETWEEN = "\n\n"  #: between texts that were turns of their own

Message = dict[str, Any]


class Traits(NamedTuple):
    """What a template does with what it is given, found by trying (chat_template.py)."""

    with_parts: bool = False  #: content must be a list of parts
    system: bool = True  #: a system turn is shown
    developer: bool = False  #: the role `developer` is one it knows
    assistant_first: bool = True  #: the conversation may begin with an assistant's turn
    tool_calls: bool = True  #: an assistant's tool calls are shown
    tool_results: bool = True  #: a tool's turn is shown


def candidates(messages: list[Message], traits: Traits, calls_as_text: bool = False) -> Iterator[list[Message]]:
    """The forms to try, in order. `calls_as_text`: calls are not given to the template in any."""
    plain = [_plain(message, traits) for message in messages]
    if calls_as_text:
        traits = traits._replace(tool_calls=False, tool_results=False)
    plain = _tools_as_text(plain, traits)
    if not traits.system:
        plain = fold_system(plain)
    if not traits.assistant_first:
        plain = _user_first(plain)
    seen: list[list[Message]] = []
    merged = merge_turns(plain)
    folded = merge_turns(fold_system(plain))
    without_tools = _tools_as_text(plain, traits._replace(tool_calls=False, tool_results=False))
    texts_only = merge_turns(_user_first(fold_system(without_tools)))
    apart = _one_call_each(merged)
    forms = (plain, merged, _short_ids(merged), apart, _short_ids(apart), folded, _user_first(folded), texts_only)
    for form in forms:
        if form not in seen:
            seen.append(form)
            yield in_parts(form) if traits.with_parts else form


def merge_turns(messages: list[Message]) -> list[Message]:
    """Neighbouring turns of one role as one, with an empty line between their texts. A tool's turns stay apart."""
    merged: list[Message] = []
    for message in messages:
        before = merged[-1] if merged else None
        if before and before["role"] == message["role"] != "tool":
            texts = [text for text in (before["content"], message["content"]) if text]
            merged[-1] = before | message | {"content": BETWEEN.join(texts)}
            if calls := [*before.get("tool_calls", ()), *message.get("tool_calls", ())]:
                merged[-1]["tool_calls"] = calls
        else:
            merged.append(message)
    return merged


def fold_system(messages: list[Message]) -> list[Message]:
    """System texts before the first user's turn go to its beginning; later ones become users' turns."""
    first_user = next((index for index, message in enumerate(messages) if message["role"] == "user"), len(messages))
    before = messages[:first_user]
    early = [message["content"] for message in before if message["role"] == "system" and message["content"]]
    rest = [message for message in before if message["role"] != "system"]
    if first_user == len(messages):
        return [_turn("user", BETWEEN.join(early)), *rest] if early else rest
    user = messages[first_user]
    user = user | {"content": BETWEEN.join([*early, user["content"]])}
    later = [
        _turn("user", message["content"]) if message["role"] == "system" else message
        for message in messages[first_user + 1 :]
    ]
    return [*rest, user, *later]


def _plain(message: Message, traits: Traits) -> Message:
    """Content as text, never null; a role the template knows; the arguments of calls as mappings."""
    plain = message | {"content": message.get("content") or ""}
    if plain["role"] == "developer" and not traits.developer:
        plain["role"] = "system"
    if calls := plain.pop("tool_calls", None):
        plain["tool_calls"] = [_with_mapping(call) for call in calls]
    return plain


def _with_mapping(call: dict[str, Any]) -> dict[str, Any]:
    """Templates walk through arguments or write them with `tojson`: a text would come out quoted twice."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return call
    return call | {"function": function | {"arguments": parsed}} if isinstance(parsed, dict) else call


def _tools_as_text(messages: list[Message], traits: Traits) -> list[Message]:
    """Calls and results as words of the assistant and the user, as far as the template would not show them."""
    names = {call.get("id"): _name(call) for message in messages for call in message.get("tool_calls", ())}
    result = []
    for message in messages:
        if message["role"] == "tool" and not traits.tool_results:
            name = message.get("name") or names.get(message.get("tool_call_id")) or "a tool"
            result.append(_turn("user", f"Result of {name}:\n{message['content']}"))
        elif message.get("tool_calls") and not traits.tool_calls:
            without = {key: value for key, value in message.items() if key != "tool_calls"}
            calls = _calls_text(message["tool_calls"])
            result.append(without | {"content": "\n".join(filter(None, [message["content"], calls]))})
        else:
            result.append(message)
    return result


def _calls_text(calls: list[dict[str, Any]]) -> str:
    """As a model without tools is told to write them (tasks/tool_formats/generic.py)."""
    listed = [{"name": _name(call), "arguments": (call.get("function") or {}).get("arguments", {})} for call in calls]
    return json.dumps({"tool_calls": listed}, ensure_ascii=False)


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Several calls of one turn as turns of their own, each with its result behind it."""
    result: list[Message] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            result.append(message)
            continue
        results: list[Message] = []
        while position < len(messages) and messages[position]["role"] == "tool":
            results.append(messages[position])
            position += 1
        for number, call in enumerate(calls):
            result.append(message | {"content": message["content"] if number == 0 else "", "tool_calls": [call]})
            own = next((turn for turn in results if turn.get("tool_call_id") == call.get("id")), None)
            if own is not None:
                results.remove(own)
                result.append(own)
        result += results
    return result


def _name(call: dict[str, Any]) -> str:
    return str((call.get("function") or {}).get("name", "a tool"))


def _user_first(messages: list[Message]) -> list[Message]:
    """An empty user's turn before a conversation that the assistant opens."""
    start = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if start < len(messages) and messages[start]["role"] == "assistant":
        return [*messages[:start], _turn("user", ""), *messages[start:]]
    return messages


def _short_ids(messages: list[Message]) -> list[Message]:
    """Ids of calls as Mistral's templates demand them: nine letters or digits."""

    def short(id_: Any) -> str:
        return hashlib.sha256(str(id_).encode("utf-8", errors="replace")).hexdigest()[:9]

    result = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = message | {"tool_calls": [call | {"id": short(call.get("id"))} for call in calls]}  # noqa: PLW2901
        if "tool_call_id" in message:
            message = message | {"tool_call_id": short(message["tool_call_id"])}  # noqa: PLW2901
        result.append(message)
    return result


def in_parts(messages: list[Message]) -> list[Message]:
    """Each content as a list of one part."""
    return [message | {"content": [{"type": "text", "text": message["content"]}]} for message in messages]


def _turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}
