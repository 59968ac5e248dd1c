"""Schemas of messages and tools, which clients send."""

from api.openapi.shapes import ANY_OBJECT, BOOLEAN, NAME, TEXT, Schema, array, body, const, one_of
from api.protocol.messages import ROLES, TEXT_PARTS

_PARTS: list[Schema] = [
    {
        "type": "object",
        "required": ["type", key],
        "properties": {"type": one_of(kind for kind, held in TEXT_PARTS.items() if held == key), key: TEXT},
    }
    for key in dict.fromkeys(TEXT_PARTS.values())
]
CONTENT: Schema = {"anyOf": [TEXT, array({"anyOf": _PARTS}, minItems=1)]}
#: of a tool, which may have nothing to say
OUTPUT: Schema = {"anyOf": [TEXT, array({"anyOf": _PARTS})]}
CALLED = body(["name"], {"name": NAME, "arguments": {"anyOf": [TEXT, ANY_OBJECT]}})
_TURN: dict[str, Schema] = {
    "name": TEXT,
    "content": CONTENT,
}
MESSAGES = array(
    {
        "anyOf": [
            body(
                ["role", "content"],
                {"role": one_of(role for role in ROLES if role != "assistant"), "tool_call_id": TEXT, **_TURN},
            ),
            body(
                ["role"],
                {
                    "role": const("assistant"),
                    **_TURN,
                    "refusal": TEXT,
                    "reasoning_content": TEXT,
                    "tool_calls": array(
                        body(["function"], {"id": TEXT, "type": const("function"), "function": CALLED})
                    ),
                    "function_call": CALLED,
                },
            ),
        ]
    },
    minItems=1,
)
FUNCTION: dict[str, Schema] = {"name": NAME, "description": TEXT, "parameters": ANY_OBJECT, "strict": BOOLEAN}
TOOLS = array(body(["type", "function"], {"type": const("function"), "function": body(["name"], FUNCTION)}))
TOOL_CHOICE: Schema = {
    "anyOf": [
        one_of(["none", "auto", "required"]),
        body(["type", "function"], {"type": const("function"), "function": body(["name"], {"name": NAME})}),
        body(
            ["type", "allowed_tools"],
            {
                "type": const("allowed_tools"),
                "allowed_tools": body(
                    ["mode", "tools"], {"mode": one_of(["auto", "required"]), "tools": array(ANY_OBJECT, minItems=1)}
                ),
            },
        ),
    ]
}
