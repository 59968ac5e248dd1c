"""Typed reading of one JSON object: every wrong value is an `InvalidRequest` that names its field.

`null` means the same as absent for every optional field: many clients send all the fields they know.
"""

from typing import Any

UNSUPPORTED = "unsupported_value"
MAX_DEPTH = 64  #: of what is passed on as it came (tools, template arguments); JSON schemas rarely pass 20
MAX_INT = 2**31 - 1  #: what llama.cpp's int32 parameters hold


class InvalidRequest(Exception):
    """The client's fault: a 400 whose `param` names the field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def unsupported(param: str, message: str) -> InvalidRequest:
    """Known, and not served here: said, never silently ignored."""
    return InvalidRequest(message, param, UNSUPPORTED)


def kind(value: Any) -> str:
    """The JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


class Fields:
    """Reads the members of one JSON object. `path` is put before the names in messages: `messages[0]`."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self.values = values
        self.path = path

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def wrong(self, key: str, expected: str) -> InvalidRequest:
        name = self.name(key)
        return InvalidRequest(f"'{name}' must be {expected}, not {kind(self.get(key))}.", name)

    def string(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def required_string(self, key: str) -> str:
        """Neither absent, nor empty or blank."""
        value = self.string(key)
        if value is None or not value.strip():
            name = self.name(key)
            raise InvalidRequest(f"'{name}' is missing or empty; it must be a string.", name)
        return value

    def boolean(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def mapping(self, key: str) -> dict[str, Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return value

    def items(self, key: str) -> list[Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value

    def number(self, key: str, low: float | None = None, high: float | None = None) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        self._check_range(key, value, low, high)
        return float(value)

    def integer(self, key: str, low: int | None = None, high: int | None = None) -> int | None:
        """JSON has one number type, so `64.0` is 64; `0.5` is not an integer."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
            raise self.wrong(key, "an integer")
        self._check_range(key, value, low, high)
        return int(value)

    def _check_range(self, key: str, value: float, low: float | None, high: float | None) -> None:
        name = self.name(key)
        if low is not None and value < low:
            raise InvalidRequest(f"'{name}' is {value}; it must be at least {low}.", name)
        if high is not None and value > high:
            raise InvalidRequest(f"'{name}' is {value}; it must be at most {high}.", name)


def check_plain(value: Any, name: str, depth: int = 0) -> None:
    """Refuse what parses as JSON and cannot travel to the worker: too deep, or integers beyond 64 bits."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"'{name}' is nested deeper than {MAX_DEPTH} levels.", name)
    if isinstance(value, dict):
        for item in value.values():
            check_plain(item, name, depth + 1)
    elif isinstance(value, list):
        for item in value:
            check_plain(item, name, depth + 1)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidRequest(f"'{name}' holds an integer that needs more than 64 bits.", name)
