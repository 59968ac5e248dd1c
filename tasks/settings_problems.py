"""What is wrong with settings, in words for people; and variables that are no settings at all."""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

#: LIS_* variables that somebody else reads: docker-compose.redis.yml
OTHER_VARIABLES = frozenset({"LIS_REDIS_PASSWORD", "LIS_REDIS_PORT"})
SECRETS = frozenset({"LIS_API_KEY", "LIS_REDIS_URL", "HF_TOKEN"})

Read = Callable[[Mapping[str, Any]], object]  #: build the settings with these on top, by field name


def problems_of(exc: ValidationError, model: type[BaseModel], read: Read, overrides: Mapping[str, Any]) -> list[str]:
    """A line for each problem: `LIS_N_CTX is '0'; it must be at least 256`. A secret's value is never shown.

    pydantic looks at settings together only when each one is right. So they are read again with defaults for the wrong
    ones, and what then is wrong between right ones is added.
    """
    names = {str(field.validation_alias): name for name, field in model.model_fields.items()}
    wrong = {str(error["loc"][0]) for error in exc.errors() if error["loc"]}
    lines = [line for error in exc.errors() for line in _lines(error, model.model_fields, names)]
    if not wrong:
        return lines
    fields = {names[variable]: model.model_fields[names[variable]] for variable in wrong}
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    try:
        read({**overrides, **defaults})
    except ValidationError as again:
        together = [line for error in again.errors() for line in _lines(error, model.model_fields, names)]
        lines += [line for line in together if not any(variable in line.split() for variable in wrong)]
    return lines


def _lines(error: Any, fields: Mapping[str, FieldInfo], names: Mapping[str, str]) -> list[str]:
    if not error["loc"]:
        return str(error["ctx"]["error"]).splitlines()
    variable = str(error["loc"][0])
    value = "wrong" if variable in SECRETS else repr(str(error["input"]))
    return [f"{variable} is {value}; {_expected(error, fields[names[variable]])}"]


def _expected(error: Any, field: FieldInfo) -> str:
    """What the value may be, from pydantic's kind of error."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"it must be {context['expected']}"
    if kind in ("greater_than", "greater_than_equal", "less_than_equal"):
        return f"it must be {_range(field)}"
    if kind.startswith("int_"):
        return f"it must be a whole number {_range(field)}".rstrip()
    if kind.startswith(("float_", "finite_")):
        return f"it must be a number {_range(field)}".rstrip()
    if kind.startswith("bool_"):
        return "it must be true or false"
    if kind == "string_too_short":
        return "it must not be empty"
    if kind == "string_too_long":
        return f"it must have at most {context['max_length']} characters"
    message = str(error["msg"])
    return message[0].lower() + message[1:]


def _range(field: FieldInfo) -> str:
    limits: dict[str, Any] = {}
    for constraint in field.metadata:
        for name in ("gt", "ge", "le"):
            if (limit := getattr(constraint, name, None)) is not None:
                limits[name] = limit
    if "ge" in limits and "le" in limits:
        return f"from {limits['ge']:g} to {limits['le']:g}"
    words = {"gt": "above", "ge": "at least", "le": "at most"}
    return " and ".join(f"{words[name]} {limit:g}" for name, limit in limits.items())


def unknown_variables(model: type[BaseModel], env_file: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """A line for each LIS_* variable of the environment or the `.env` file that is no setting: most likely a slip."""
    known = {str(field.validation_alias) for field in model.model_fields.values()}
    in_file = dotenv_values(env_file, encoding="utf-8-sig") if env_file.is_file() else {}
    given: Iterable[str] = {*(os.environ if environ is None else environ), *in_file}
    lines = []
    for name in sorted(name for name in given if name.upper().startswith("LIS_")):
        if name.upper() not in known | OTHER_VARIABLES:
            nearest = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.7)
            lines.append(f"{name} is no setting" + (f"; did you mean {nearest[0]}?" if nearest else ""))
    return lines
