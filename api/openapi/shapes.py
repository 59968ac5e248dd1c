"""Pieces of JSON Schema (2020-12, which OpenAPI 3.1 uses), and the fields that the protocol's readers ask for."""

from collections.abc import Callable, Iterable
from typing import Any

from api.protocol.fields import Fields

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "pattern": r"\S"}  #: neither empty nor blank
ANY_OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: Any) -> Schema:
    return {"const": value}


def one_of(values: Iterable[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items} | limits


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def nullable(schema: Schema) -> Schema:
    """Or null, which for every optional field of a request means the same as its absence."""
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return schema | {"type": [kind, "null"]}
    if isinstance(kind, list) or {"type": "null"} in schema.get("anyOf", []):
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def described(schema: Schema, text: str) -> Schema:
    return schema | {"description": text}


def record(optional: Iterable[str] = (), /, **properties: Schema) -> Schema:
    """An object that has all of `properties` but the `optional` ones."""
    missing = frozenset(optional)
    required = [name for name in properties if name not in missing]
    return {"type": "object", "required": required, "properties": properties}


def body(required: Iterable[str], properties: dict[str, Schema]) -> Schema:
    """A request's object: what is not required may also be null, and unknown members are ignored."""
    needed = list(required)
    if not needed:
        return {"type": "object", "properties": {name: nullable(schema) for name, schema in properties.items()}}
    shown = {name: schema if name in needed else nullable(schema) for name, schema in properties.items()}
    return {"type": "object", "required": needed, "properties": shown}


def asked_of(*readers: Callable[[Fields], object]) -> dict[str, Schema]:
    """Types and ranges of the single values that `readers` ask an object for, given that all are absent."""
    asked = _Asked()
    for read in readers:
        read(asked)
    return asked.schemas


class _Asked(Fields):
    def __init__(self) -> None:
        super().__init__({})
        self.schemas: dict[str, Schema] = {}

    def string(self, key: str) -> str | None:
        self.schemas[key] = TEXT
        return super().string(key)

    def boolean(self, key: str) -> bool | None:
        self.schemas[key] = BOOLEAN
        return super().boolean(key)

    def mapping(self, key: str) -> dict[str, Any] | None:
        self.schemas[key] = ANY_OBJECT
        return super().mapping(key)

    def items(self, key: str) -> list[Any] | None:
        self.schemas[key] = {"type": "array"}
        return super().items(key)

    def number(self, key: str, low: float | None = None, high: float | None = None) -> float | None:
        self.schemas[key] = NUMBER | _range(low, high)
        return super().number(key, low, high)

    def integer(self, key: str, low: int | None = None, high: int | None = None) -> int | None:
        self.schemas[key] = INTEGER | _range(low, high)
        return super().integer(key, low, high)


def _range(low: float | None, high: float | None) -> Schema:
    limits = {"minimum": low, "maximum": high}
    return {name: limit for name, limit in limits.items() if limit is not None}
