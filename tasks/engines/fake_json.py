"""The smallest JSON value that a schema takes, for the usual keywords. Pure."""

from typing import Any

MAX_DEPTH = 32  #: of schemas that refer to themselves


def smallest_value(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Required properties only. Patterns, formats and dependencies between values are not heeded."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    root = schema if root is None else root
    if "$ref" in schema:
        return smallest_value(_referred(str(schema["$ref"]), root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    for keyword in ("enum", "anyOf", "oneOf", "allOf"):
        if first := schema.get(keyword):
            return first[0] if keyword == "enum" else smallest_value(first[0], root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: smallest_value(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        return [smallest_value(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems", 0))]
    if kind in ("integer", "number"):
        return _smallest_number(schema)
    return {"boolean": False, "null": None}.get(kind, "x" * schema.get("minLength", 1))


def _smallest_number(schema: dict[str, Any]) -> Any:
    """0 where it is allowed, else what is nearest to it."""
    least = max(schema.get("minimum", 0), schema.get("exclusiveMinimum", -1) + 1, 0)
    most = min(schema.get("maximum", least), schema.get("exclusiveMaximum", least + 1) - 1)
    return min(least, most)


def _referred(reference: str, root: Any) -> Any:
    target = root
    for name in reference.lstrip("#").split("/")[1:]:
        target = target.get(name, {}) if isinstance(target, dict) else {}
    return target
