"""Which JSON Schema keywords hold. `python -m tasks.schema_keywords` prints the README's table."""

from typing import NamedTuple


class Keyword(NamedTuple):
    """Names that are treated alike. `note` says how far they hold, or what happens instead."""

    names: tuple[str, ...]
    holds: bool
    note: str = ""


FORMATS = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uuid",
)

ANNOTATIONS = ("binary", "byte", "password", "path")  #: formats that say what a text is for, not how it is written

MAX_PROPERTIES = 1000

KEYWORDS = [
    Keyword(("type",), True, "one or a list of them; an `integer` is written without fraction and exponent"),
    Keyword(("enum", "const"), True, "of any JSON values"),
    Keyword(("properties",), True, f"in the order of the schema; at most {MAX_PROPERTIES} of one object"),
    Keyword(("required",), True),
    Keyword(
        ("additionalProperties",),
        True,
        "true, false or a schema; after those of `properties`. Absent beside `properties`: false, but for schemas that "
        "are merged with others",
    ),
    Keyword(("patternProperties",), True, "where no two patterns can match the same name"),
    Keyword(
        ("minProperties",),
        True,
        "up to the number of required properties and one; above 0 only where all of `properties` are required, or 1 "
        "with no `properties`",
    ),
    Keyword(("maxProperties",), True, "where all of `properties` are required"),
    Keyword(
        ("items", "prefixItems", "additionalItems"), True, "`items` as a list, too, as drafts before 2020-12 have it"
    ),
    Keyword(("minItems", "maxItems"), True),
    Keyword(("minLength", "maxLength"), True, "in Unicode characters"),
    Keyword(("pattern",), True, r"without look-around, back-references and `\b`; `\d`, `\w` and `\s` are ASCII"),
    Keyword(
        ("format",),
        True,
        "of text: "
        + ", ".join(f"`{name}`" for name in FORMATS)
        + "; any other is refused, but for "
        + ", ".join(f"`{name}`" for name in ANNOTATIONS)
        + ", which restrict nothing. Beside another `type` it "
        "restricts nothing (`int64`, `double`)",
    ),
    Keyword(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), True, "numbers are written without exponent"
    ),
    Keyword(("multipleOf",), True, "with a least common multiple of at most 100000, decimal points not counted"),
    Keyword(("anyOf",), True),
    Keyword(
        ("oneOf",),
        True,
        "where the alternatives provably exclude each other: other types, or other constants of a required property",
    ),
    Keyword(("allOf",), True, "the schemas are merged, in their order"),
    Keyword(
        ("$ref", "$defs", "definitions", "$id", "$anchor"), True, "within the schema, recursion too; nothing is fetched"
    ),
    Keyword(("nullable",), True, "OpenAPI 3.0's: true beside `type` adds `null`"),
    Keyword(("not",), False),
    Keyword(("if", "then", "else"), False),
    Keyword(("propertyNames",), False),
    Keyword(("dependentRequired", "dependentSchemas", "dependencies"), False),
    Keyword(("unevaluatedProperties", "unevaluatedItems"), False, "true restricts nothing and is accepted"),
    Keyword(("uniqueItems",), False, "false restricts nothing and is accepted"),
    Keyword(("contains", "minContains", "maxContains"), False),
    Keyword(("$dynamicRef", "$recursiveRef"), False),
    Keyword(
        ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"),
        True,
        "accepted, restrict nothing; so does any name that JSON Schema does not have (`x-…`)",
    ),
    Keyword(("contentEncoding", "contentMediaType", "contentSchema"), True, "accepted, restrict nothing"),
]

UNHELD = frozenset(name for keyword in KEYWORDS if not keyword.holds for name in keyword.names)


def keywords_table() -> str:
    rows = [
        f"| {', '.join(f'`{name}`' for name in names)} | {'yes' if holds else 'no: 400'} | {note} |"
        for names, holds, note in KEYWORDS
    ]
    return "\n".join(["| keyword | holds | |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(keywords_table())  # noqa: T201 - its purpose
