"""Pieces of llguidance's grammars (Lark with `%json`) for calls of tools. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from tasks.json_schema import json_schema_options
from tasks.tool_formats.base import SpecialId, Tool

MAX_CALLS = 16  #: of a constrained answer: a small model might find no end
DATA = ("const", "enum", "default", "example", "examples")  #: keywords whose values are no schemas
LISTED = {"type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions"}


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def mark_rule(name: str, mark: str, special: SpecialId) -> str:
    token = special(mark)
    return f"{name}: {literal(mark) if token is None else f'<[{token}]>'}"


def json_rule(name: str, schema: dict[str, Any]) -> str:
    return f"{name}: %json {json.dumps(schema | {'x-guidance': json_schema_options()})}"


def arguments_rules(tools: Sequence[Tool]) -> list[str]:
    """`arguments_0` and so on: the arguments of each tool."""
    return [json_rule(f"arguments_{index}", tool.schema) for index, tool in enumerate(tools)]


def call_schema(tools: Sequence[Tool], key: str, at: str = "") -> dict[str, Any]:
    """An object with the name of a tool and, under `key`, arguments for it. `at`: where in the schema it is put."""
    alternatives = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                key: moved(tool.schema, f"{at}/anyOf/{index}/properties/{key}"),
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    return {"anyOf": alternatives}


def array_schema(tools: Sequence[Tool], key: str, many: bool, at: str = "") -> dict[str, Any]:
    schema = {"type": "array", "items": call_schema(tools, key, f"{at}/items"), "minItems": 1}
    return schema | {"maxItems": MAX_CALLS if many else 1}


def moved(schema: Any, at: str) -> Any:
    """The schema with its references to itself as they must be where it is no longer the root, but at a pointer."""
    if isinstance(schema, list):
        return [moved(item, at) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, item in schema.items():
        if key == "$ref" and isinstance(item, str) and (item == "#" or item.startswith("#/")):
            result[key] = f"#{at}{item[1:]}"
        else:
            result[key] = item if key in DATA else moved(item, at)
    return result


def repeated(rule: str, many: bool, between: str = "") -> str:
    """The rule once, or up to MAX_CALLS times."""
    parts = f"{literal(between)} {rule}" if between else rule
    return f"{rule} ({parts}){{0,{MAX_CALLS - 1}}}" if many else rule


def takes_any_object(schema: dict[str, Any]) -> bool:
    is_open = schema.get("additionalProperties", True) is True
    return set(schema) <= LISTED and is_open and not schema.get("properties") and not schema.get("required")


def keyword_arguments(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any], bool]] | None:
    """Name, schema and need of each property; None: the schema says more than that."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not set(schema) <= LISTED or not isinstance(schema.get("additionalProperties", False), bool):
        return None
    if not all(key.isidentifier() for key in properties) or not set(required) <= set(properties):
        return None
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    listed: list[tuple[str, dict[str, Any], bool]] = []
    for key, item in properties.items():
        if not isinstance(item, dict) or _refers_to_root(item):
            return None
        listed.append((key, shared | item, key in required))
    return listed


def _refers_to_root(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_refers_to_root, schema))
    if not isinstance(schema, dict):
        return False
    target = schema.get("$ref")
    is_other = isinstance(target, str) and not target.startswith(("#/$defs/", "#/definitions/"))
    return is_other or any(map(_refers_to_root, schema.values()))
