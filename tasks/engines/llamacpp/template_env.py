"""The jinja2 environment that chat templates are written for: what transformers' `apply_chat_template` offers.

Sandboxed, for templates come with downloaded GGUFs; and bounded in work and output, for messages come from users.
"""

import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.engines.llamacpp.prompt_text import STAND_INS

MAX_OPERATIONS = 5_000_000  #: look-ups and calls of one rendering; a conversation of 1000 turns needs some 20 000
MAX_REPEATED = 10_000_000  #: length of what `*` may make
NOT_ASCII = re.compile(f"[^\x00-\x7f{chr(STAND_INS.start)}-{chr(STAND_INS.stop - 1)}]")

_operations_left: ContextVar[int] = ContextVar("operations_left", default=MAX_OPERATIONS)


class TemplateRaised(TemplateError):
    """The template itself refused the messages, with `raise_exception`. `str()` is its author's message."""


class TemplateTooBusy(TemplateError):
    """The rendering took more work than any honest conversation does."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def getattr(self, obj: Any, attribute: str) -> Any:
        _count_operation()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _count_operation()
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _count_operation()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sized = next((len(side) for side in (left, right) if isinstance(side, str | list | tuple)), None)
        count = next((side for side in (left, right) if isinstance(side, int)), 0)
        too_long = sized is not None and sized * count > MAX_REPEATED
        if too_long or (operator == "**" and isinstance(right, int | float) and abs(right) > 64):
            raise SecurityError("a value grows too large")
        return super().call_binop(context, operator, left, right)


def chat_environment(now: Callable[[], datetime] = datetime.now) -> ChatEnvironment:
    """`now`: the clock of `strftime_now`."""
    environment = ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )

    def strftime_now(form: str) -> str:
        return now().strftime(form)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def allow_operations() -> None:
    """Start counting anew. Called before each rendering, on its thread."""
    _operations_left.set(MAX_OPERATIONS)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: characters as they are, nothing escaped for HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:  # but for the stand-ins, which must still be found in the prompt
        text = NOT_ASCII.sub(lambda match: json.dumps(match.group())[1:-1], text)
    return text


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRaised(str(message))


def _count_operation() -> None:
    left = _operations_left.get()
    if left <= 0:
        raise TemplateTooBusy("the chat template does too much work for these messages")
    _operations_left.set(left - 1)
