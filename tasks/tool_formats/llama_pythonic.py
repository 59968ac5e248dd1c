"""Llama's pythonic calls: `[get_weather(city="Oslo"), now()]`, values as Python's or JSON's literals."""

import ast
import json
import re
import warnings
from collections.abc import Sequence

from tasks.tool_formats.base import (
    Evidence,
    Found,
    RawCall,
    Reading,
    SpecialId,
    Tool,
    Verdict,
    balanced_end,
    begins_line,
    find_mark,
    skip_blank,
    undecided,
)
from tasks.tool_formats.lark import json_rule, keyword_arguments, literal, repeated, takes_any_object

TAG = "<|python_tag|>"
NAME = re.compile(r"[\w.-]+")
HEAD = re.compile(r"\s*(?:[\w.-]+\s*(?:\(|$)|$)")  # what may follow the bracket
WRITTEN = re.compile(r"\[\s*\w+\(\s*\w+\s*=")
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
JSON_NAMES = {"true": "true", "false": "false", "null": "null"}
QUOTES = "\"'"
MAX_LENGTH = 1_000_000  #: characters that are given to Python's parser


class LlamaPythonic:
    name = "llama-pythonic"
    marks: tuple[str, ...] = (TAG,)
    opening: str | None = TAG
    opening_lasts = True
    gap = " \t\r\n"
    head = re.compile(r"(?P<name>[\w.-]+)\(")

    def recognises(self, evidence: Evidence) -> bool:
        return WRITTEN.search(evidence.writing) is not None

    def start(self, text: str, position: int, floor: int) -> int:
        tag = find_mark(text, TAG, position)
        bracket = text.find("[", position)
        while bracket >= 0 and not begins_line(text, bracket, floor, self.gap):
            bracket = text.find("[", bracket + 1)
        return tag if bracket < 0 else min(tag, bracket)

    def read(self, text: str, start: int, is_whole: bool) -> Reading:
        bracket = start
        if text[start] != "[":
            bracket = skip_blank(text, start + len(TAG))
            if not text.startswith(TAG, start) or bracket == len(text):
                return undecided(is_whole)
        if text[bracket] != "[" or not HEAD.match(text, bracket + 1):
            return Verdict.NOT_A_CALL
        end = balanced_end(text, bracket, QUOTES)
        if end is None:
            return undecided(is_whole)
        calls = read_calls(text[bracket + 1 : end - 1])
        return Found(calls, end) if calls else Verdict.NOT_A_CALL

    def arguments_reader(self) -> "PythonArguments":
        return PythonArguments()

    def rules(self, tools: Sequence[Tool], many: bool, special: SpecialId) -> str:
        rules = [
            "calls: opened",
            f'opened: "[" {repeated("call", many, ", ")} "]"',
            "call: " + " | ".join(f"{literal(tool.name + '(')} arguments_{i}" for i, tool in enumerate(tools)),
        ]
        for index, tool in enumerate(tools):
            rules += _arguments_rules(f"arguments_{index}", tool)
        return "\n".join(rules)


def read_calls(text: str) -> tuple[RawCall, ...] | None:
    """Calls with commas between them; None: it is something else."""
    calls: list[RawCall] = []
    position = skip_blank(text, 0)
    while position < len(text):
        name = NAME.match(text, position)
        if not name:
            return None
        opening = skip_blank(text, name.end())
        end = balanced_end(text, opening, QUOTES) if text.startswith("(", opening) else None
        arguments = None if end is None else read_keywords(text[opening + 1 : end - 1])
        if end is None or arguments is None:
            return None
        calls.append(RawCall(name.group(), arguments))
        position = skip_blank(text, end)
        if position < len(text):
            if text[position] != ",":
                return None
            position = skip_blank(text, position + 1)
    return tuple(calls)


def read_keywords(text: str) -> str | None:
    """`city="Oslo", n=1` as the JSON text of an object; None: there is something else than keywords and literals."""
    if len(text) > MAX_LENGTH:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "\d" in a text
            warnings.simplefilter("ignore", DeprecationWarning)
            source = f"f({text}\n)"
            call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            return None
        pairs: dict[str, str] = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                pairs[_json_text(keyword.arg)] = _json_of(keyword.value, source)
            elif isinstance(keyword.value, ast.Dict):
                pairs |= _json_pairs(keyword.value, source)
            else:
                return None
        return _json_object(pairs)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _json_of(node: ast.expr, source: str) -> str:
    """A literal as JSON, numbers as they are written. Raises ValueError: it is no literal that JSON has."""
    match node:
        case ast.Constant(value=None):
            return "null"
        case ast.Constant(value=bool(value)):
            return "true" if value else "false"
        case ast.Constant(value=str(value)):
            return _json_text(value)
        case ast.Constant(value=int() | float() as value):
            spelled = ast.get_source_segment(source, node) or ""
            return spelled if NUMBER.fullmatch(spelled) else json.dumps(value, allow_nan=False)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if value is not True:
            return "-" + _json_of(node.operand, source)
        case ast.Name(id=name) if name in JSON_NAMES:
            return JSON_NAMES[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return "[" + ", ".join(_json_of(element, source) for element in elements) + "]"
        case ast.Dict():
            return _json_object(_json_pairs(node, source))
        case _:
            raise ValueError("no literal")


def _json_pairs(node: ast.Dict, source: str) -> dict[str, str]:
    return {_json_key(key): _json_of(value, source) for key, value in zip(node.keys, node.values, strict=True)}


def _json_object(pairs: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"


def _json_key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _json_text(node.value)
    raise ValueError("no key of an object")


def _json_text(text: str) -> str:
    has_half_pair = any("\ud800" <= character <= "\udfff" for character in text)
    return json.dumps(text, ensure_ascii=has_half_pair)


class PythonArguments:
    """Keywords up to the closing parenthesis; they leave at once, for they are no JSON before they are whole."""

    def __init__(self) -> None:
        self._text = "("

    def feed(self, text: str) -> tuple[str, str | None]:
        self._text += text
        end = balanced_end(self._text, 0, QUOTES)
        if end is None:
            return "", None
        return read_keywords(self._text[1 : end - 1]) or "{}", self._text[end:]


def _arguments_rules(rule: str, tool: Tool) -> list[str]:
    """Keywords in the schema's order, with JSON's literals; a schema that is more than a list of them: `**{…}`."""
    if takes_any_object(tool.schema):
        return [
            f'{rule}: ({rule}_pair (", " {rule}_pair)*)? ")"',
            f'{rule}_pair: /[A-Za-z_][A-Za-z0-9_]*/ "=" {rule}_value',
            json_rule(f"{rule}_value", {}),
        ]
    properties = keyword_arguments(tool.schema)
    if properties is None:
        return [f'{rule}: "**" {rule}_object ")"', json_rule(f"{rule}_object", tool.schema)]
    rules = [f"{rule}: {rule}_first_0"]
    last = len(properties)
    for index, (key, schema, is_required) in enumerate(properties):
        value = f"{rule}_value_{index}"
        rules.append(json_rule(value, schema))
        for state, comma in (("first", ""), ("next", ", ")):
            taken = f"{literal(f'{comma}{key}=')} {value} {rule}_next_{index + 1}"
            skipped = "" if is_required else f" | {rule}_{state}_{index + 1}"
            rules.append(f"{rule}_{state}_{index}: {taken}{skipped}")
    return [*rules, f'{rule}_first_{last}: ")"', f'{rule}_next_{last}: ")"']
