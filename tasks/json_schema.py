"""JSON schemas as they can be enforced: checked, bounded, freed of what restricts nothing. Pure.

llguidance follows the draft that `$schema` names and passes over the keywords which that draft does not have. Here a
schema means what it says in any draft, and a keyword that restricts is either enforced or refused.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tasks.closed_objects import close_objects
from tasks.grammar_error import GrammarError
from tasks.schema_keywords import ANNOTATIONS, FORMATS, MAX_PROPERTIES, UNHELD

MAX_SCHEMA_BYTES = 256 * 1024
MAX_LEVELS = 64  #: schemas within schemas
MAX_JSON_DEPTH = 120  #: the compiler's JSON reader ends at 128
MAX_MULTIPLE = 100_000
MAX_DECIMALS = 12
UNWRITABLE = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]|\x7f")  #: in JSON text, given `json_schema_options`
WHITESPACE = r" |\n {0,20}"  #: at each place where JSON may have white space: none, a space, or a new line, indented

Schema = dict[str, Any]

_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
REAL_DATE = (  # the format alone takes 29 February of any year, and the year 0
    rf"^(?:(?:[0-9]{{3}}[1-9]|[0-9]{{2}}[1-9][0-9]|[0-9][1-9][0-9]{{2}}|[1-9][0-9]{{3}})"
    rf"-(?:(?:0[13-9]|1[0-2])-[0-9]{{2}}|02-(?:[01][0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)


def json_schema_options() -> dict[str, Any]:
    """How JSON is written: white space is bounded, and a character has one spelling, so that a property cannot return
    under an escaped name. The value of `x-guidance` at the top of every schema that is compiled: of the ones made here
    and of those that other grammars embed with `%json`."""
    return {"whitespace_pattern": WHITESPACE, "json_allowed_escapes": 'nrbtf\\"', "lenient": False}


def prepared_schema(source: str | Schema | bool) -> Schema:
    """What may be given to the compiler, also embedded as `%json {…}`, with `json_schema_options` in it.

    `source` is JSON text or what it stands for, and is not changed. Raises GrammarError.
    """
    schema = _loaded(source)
    if schema is True:
        schema = {}
    if schema is False:
        raise GrammarError("The JSON schema is false: it allows no value.")
    if not isinstance(schema, dict):
        raise GrammarError("The JSON schema must be an object.")
    preparation = _Preparation(schema)
    preparation.prepare(schema, "", 0)
    close_objects(preparation.schemas, lambda inner: (referred(schema, inner) or ("", None))[1])
    schema["x-guidance"] = json_schema_options()
    return schema


def subschemas(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas directly within this one, and where: `properties.age`, `anyOf[1]`, `items`."""
    for keyword in ("properties", "patternProperties"):
        if isinstance(schema.get(keyword), dict):
            for name, inner in schema[keyword].items():
                yield f"{keyword}.{name}", inner
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        if isinstance(schema.get(keyword), list):
            for index, inner in enumerate(schema[keyword]):
                yield f"{keyword}[{index}]", inner
    for keyword in ("items", "additionalItems", "additionalProperties"):
        if keyword in schema and not isinstance(schema[keyword], list):
            yield keyword, schema[keyword]


def referred(root: Schema, schema: Schema) -> tuple[str, Any] | None:
    """The schema that `$ref` points to within `root`, and where; None: no pointer, or it leads nowhere."""
    ref = schema.get("$ref")
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return None
    found: Any = root
    names = [name.replace("~1", "/").replace("~0", "~") for name in ref[2:].split("/")]
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return (".".join(names), found) if isinstance(found, dict) else None


def at(path: str) -> str:
    return f" at `{path}`" if path else ""


def _loaded(source: str | Schema | bool) -> Any:
    try:
        text = source if isinstance(source, str) else json.dumps(source, allow_nan=False)
        if len(text.encode()) > MAX_SCHEMA_BYTES:
            raise GrammarError(f"The JSON schema is longer than {MAX_SCHEMA_BYTES} bytes.")
        if _depth(text) > MAX_JSON_DEPTH:
            raise GrammarError(f"The JSON schema is nested deeper than {MAX_LEVELS} levels.")
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise GrammarError(f"The JSON schema is nested deeper than {MAX_LEVELS} levels.") from None
    except ValueError:  # UnicodeEncodeError and JSONDecodeError too
        raise GrammarError("The JSON schema is not valid JSON.") from None


def _depth(text: str) -> int:
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string, escaped = True, False
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


class _Preparation:
    """Walks every schema that can be reached, and changes it in place."""

    def __init__(self, root: Schema) -> None:
        self.schemas: list[Schema] = []  #: all that can be reached
        self._root = root
        self._seen: set[int] = set()
        self._multiple = 1

    def prepare(self, schema: Any, path: str, level: int) -> None:
        if isinstance(schema, bool) or id(schema) in self._seen:
            return
        if not isinstance(schema, dict):
            raise GrammarError(f"The JSON schema{at(path)} must be an object, true or false.")
        self._seen.add(id(schema))
        self.schemas.append(schema)
        if level > MAX_LEVELS:
            raise GrammarError(f"The JSON schema is nested deeper than {MAX_LEVELS} levels.")
        _drop_what_restricts_nothing(schema)
        _refuse_unheld(schema, path)
        _check_counts(schema, path)
        _check_characters(schema, path)
        self._check_multiple(schema, path)
        _widen_nullable(schema)
        _narrow_dates(schema)
        for inner_path, inner in subschemas(schema):
            self.prepare(inner, f"{path}.{inner_path}" if path else inner_path, level + 1)
        target = referred(self._root, schema)
        if target is not None:
            self.prepare(target[1], target[0], level + 1)

    def _check_multiple(self, schema: Schema, path: str) -> None:
        """One automaton state per number below it; `allOf` multiplies them."""
        value = schema.get("multipleOf")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        number = Decimal(repr(value)).normalize()
        exponent = int(number.as_tuple().exponent)
        digits = int(abs(number) * 10 ** -min(exponent, 0)) if -MAX_DECIMALS <= exponent <= MAX_DECIMALS else 0
        self._multiple = math.lcm(self._multiple, digits)
        if not 0 < self._multiple <= MAX_MULTIPLE:
            raise GrammarError(
                f"The JSON schema's `multipleOf`{at(path)} cannot be enforced: all of them together must have a common "
                f"multiple of at most {MAX_MULTIPLE}, decimal points not counted."
            )


def _drop_what_restricts_nothing(schema: Schema) -> None:
    schema.pop("$schema", None)
    schema.pop("x-guidance", None)
    for keyword, value in (("uniqueItems", False), ("unevaluatedProperties", True), ("unevaluatedItems", True)):
        if schema.get(keyword) is value:
            del schema[keyword]
    types = schema.get("type")
    if isinstance(types, str | list) and "string" not in ([types] if isinstance(types, str) else types):
        schema.pop("format", None)  # one of text; OpenAPI's `int64` and `double` only say how a number is kept
    if schema.get("format") in ANNOTATIONS:
        del schema["format"]


def _refuse_unheld(schema: Schema, path: str) -> None:
    for keyword in schema:
        if keyword in UNHELD:
            raise GrammarError(
                f"The JSON schema keyword `{keyword}`{at(path)} is not supported: it cannot be enforced."
            )
    value = schema.get("format", FORMATS[0])
    if value not in FORMATS:
        known = ", ".join(FORMATS)
        raise GrammarError(f"The JSON schema's `format` {value!r}{at(path)} is not supported. Supported are: {known}.")


def _check_counts(schema: Schema, path: str) -> None:
    properties, required, least = (schema.get(k) for k in ("properties", "required", "minProperties"))
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise GrammarError(
            f"The JSON schema's `properties`{at(path)} has {len(properties)} names; {MAX_PROPERTIES} is the limit."
        )
    n_required = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and not isinstance(least, bool) and least >= 0:
        if least <= n_required:
            del schema["minProperties"]
        elif least > n_required + 1:  # further names could repeat each other
            raise GrammarError(
                f"The JSON schema's `minProperties`{at(path)} is {least}, with {n_required} required; "
                f"at most one above the number of required properties can be enforced."
            )


def _check_characters(schema: Schema, path: str) -> None:
    """Texts that must be written as they are, and cannot be."""
    for keyword in ("const", "enum", "properties", "required"):
        given = schema.get(keyword)
        texts = list(given) if keyword == "properties" and isinstance(given, dict) else given
        if UNWRITABLE.search(json.dumps(texts, ensure_ascii=False)):
            raise GrammarError(
                f"The JSON schema's `{keyword}`{at(path)} cannot be enforced: it holds a control character that has "
                f"no short escape."
            )


def _widen_nullable(schema: Schema) -> None:
    if schema.get("nullable") is not True or "type" not in schema:
        return
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    schema["type"] = types if "null" in types else [*types, "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"].append(None)


def _narrow_dates(schema: Schema) -> None:
    if schema.get("format") in ("date", "date-time") and isinstance(schema.get("allOf", []), list):
        schema["allOf"] = [*schema.get("allOf", []), {"pattern": REAL_DATE}]
