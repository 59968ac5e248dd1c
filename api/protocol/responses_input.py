"""`input` and `instructions` of /v1/responses -> chat messages. Pure."""

from typing import Any

from api.protocol.fields import Fields, InvalidRequest, kind, unsupported
from api.protocol.messages import read_content, read_function, read_message

ROLES = ("user", "assistant", "system", "developer")
STORED = "this server keeps no responses; send the whole conversation as items"
#: item type -> why it cannot be read
UNREADABLE = {
    "item_reference": STORED,
    "compaction": "it is encrypted by the service that made it",
    "compaction_trigger": "the conversation is not shortened here",
}


def read_input(fields: Fields) -> list[dict[str, Any]]:
    """Plain messages, as `read_messages` gives them. Raises InvalidRequest naming `input[i]…`."""
    conversation = _Conversation()
    if instructions := fields.string("instructions"):
        conversation.say({"role": "system", "content": instructions})
    given = fields.get("input")
    if isinstance(given, str):
        conversation.say({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        for index, item in enumerate(given):
            _read_item(item, f"input[{index}]", conversation)
    else:
        wrong = "is missing" if given is None else f"is {kind(given) if given != [] else 'an empty list'}"
        raise InvalidRequest(f"'input' {wrong}; it must be a string or a list with at least one item.", "input")
    if not conversation.messages:
        raise InvalidRequest("'input' has no message; it must have at least one.", "input")
    return conversation.messages


class _Conversation:
    """Puts the items of one assistant's turn (reasoning, text, calls, in this order) into one message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning = ""  #: waits for the turn it belongs to; without one it is left out
        self._turn: dict[str, Any] | None = None  #: the assistant's message that the next calls go to

    def say(self, message: dict[str, Any]) -> None:
        self._turn = None
        if message["role"] == "assistant":
            self._turn = message
            if self._reasoning:
                message["reasoning_content"] = self._reasoning
        self._reasoning = ""
        self.messages.append(message)

    def think(self, text: str) -> None:
        self._turn = None
        self._reasoning += text

    def call(self, call: dict[str, Any]) -> None:
        if self._turn is None:
            self.say({"role": "assistant", "content": ""})
        assert self._turn is not None
        self._turn.setdefault("tool_calls", []).append(call)


def _read_item(item: Any, path: str, conversation: _Conversation) -> None:
    if not isinstance(item, dict):
        raise InvalidRequest(f"'{path}' must be an object, not {kind(item)}.", path)
    fields = Fields(item, path)
    given = fields.string("type") or ("message" if "role" in item else None)
    match given:
        case "message":
            conversation.say(_read_message(fields))
        case "function_call":
            call: dict[str, Any] = {"type": "function", "function": read_function(fields)}
            if call_id := fields.string("call_id") or fields.string("id"):
                call["id"] = call_id
            conversation.call(call)
        case "function_call_output":
            conversation.say(_read_result(fields))
        case "reasoning":
            conversation.think(_read_reasoning(fields))
        case None:
            raise InvalidRequest(f"'{path}.type' is missing; it must be a string.", f"{path}.type")
        case _:
            reason = UNREADABLE.get(given, "only messages, function calls, their outputs and reasoning are")
            raise unsupported(path, f"'{path}' is of type '{given[:100]}', which is not supported: {reason}.")


def _read_message(fields: Fields) -> dict[str, Any]:
    role = fields.get("role")
    if role not in ROLES:
        name = fields.name("role")
        raise InvalidRequest(f"'{name}' must be one of: {', '.join(ROLES)}.", name)
    if role == "assistant" and fields.get("content") == []:
        return {"role": "assistant", "content": ""}
    return read_message({"role": role, "content": fields.get("content")}, fields.path)


def _read_result(fields: Fields) -> dict[str, Any]:
    """A tool's turn. `output` is a string, or a list of text parts that may be empty."""
    output = fields.get("output")
    if not isinstance(output, str | list):
        raise fields.wrong("output", "a string or a list of text parts")
    message = {"role": "tool", "content": read_content(fields, "output") if output else ""}
    for key, value in (("tool_call_id", fields.string("call_id")), ("name", fields.string("name"))):
        if value:
            message[key] = value
    return message


def _read_reasoning(fields: Fields) -> str:
    """The text of `content`. Summaries are not what the model thought, and encrypted thoughts cannot be read here."""
    texts = []
    for index, part in enumerate(fields.items("content") or []):
        path = f"{fields.name('content')}[{index}]"
        if not isinstance(part, dict):
            raise InvalidRequest(f"'{path}' must be an object, not {kind(part)}.", path)
        texts.append(Fields(part, path).string("text") or "")
    return "".join(texts)
