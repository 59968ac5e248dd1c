"""Closes the objects of a JSON schema that name their properties and say nothing of others. Pure.

Such an object may have any further property, and a model that may invent names does, without end. Without them every
answer still validates; llama.cpp's own converter leaves them out, too. Schemas that are merged with others (`allOf`, or
`$ref` and `anyOf` beside properties) stay open: the properties of one are further ones to the other.
"""

from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]

ALTERNATIVES = ("anyOf", "oneOf", "allOf")
OPEN = frozenset(("additionalProperties", "patternProperties", "minProperties", "$ref", "$anchor", *ALTERNATIVES))
MERGING = frozenset(("properties", "required", "additionalProperties", "patternProperties"))


def close_objects(schemas: list[Schema], target_of: Callable[[Schema], Schema | None]) -> None:
    """Change in place. `schemas`: all that can be reached; `target_of`: where a schema's `$ref` leads."""
    merged: set[int] = set()

    def mark(schema: Any) -> None:
        if not isinstance(schema, dict) or id(schema) in merged:
            return
        merged.add(id(schema))
        for part in _parts(schema):
            mark(part)

    def _parts(schema: Schema) -> Iterator[Any]:
        yield target_of(schema)
        for keyword in ALTERNATIVES:
            yield from schema[keyword] if isinstance(schema.get(keyword), list) else ()

    for schema in schemas:
        all_of = schema.get("allOf")
        if (isinstance(all_of, list) and len(all_of) > 1) or MERGING & schema.keys():
            for part in _parts(schema):
                mark(part)
    for schema in schemas:
        if id(schema) not in merged and _names_all(schema):
            schema["additionalProperties"] = False


def _names_all(schema: Schema) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not properties or OPEN & schema.keys():
        return False
    return isinstance(required, list) and all(name in properties for name in required)
