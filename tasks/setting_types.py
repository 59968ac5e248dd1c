"""Types of settings that need more than pydantic's own limits, and the words for what they may be."""

import os
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import psutil
from pydantic import AfterValidator, Field, SecretStr

from tasks.api_keys import doubles, parse_value


def physical_cores() -> int:
    """Decode threads: llama.cpp gains nothing from hyper-threads (its own default is the same)."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def one_word(value: str) -> str:
    if value.split() != [value]:
        raise ValueError("it must be one word without blanks")
    return value


def worker_name_chars(value: str) -> str:
    if not all(char.isascii() and (char.isalnum() or char in "_.@-") for char in value):
        raise ValueError("it may have ASCII letters, digits, '_', '.', '@' and '-' only")
    return value


def url_of(*schemes: str) -> AfterValidator:
    """A URL of one of these schemes with a host (for unix: a path). The message never shows the value."""

    def check(value: Any) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not text:
            return value
        try:
            parts = urlsplit(text)
            whole = bool(parts.path if parts.scheme == "unix" else parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            whole = False
        if not whole or parts.scheme not in schemes or text.split() != [text]:
            raise ValueError(f"it must be a URL that starts with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return value

    return AfterValidator(check)


def api_key_value(value: SecretStr) -> SecretStr:
    keys = parse_value(value.get_secret_value())
    if problems := list(doubles(keys)):
        raise ValueError(f"it has a key or a name twice: {'; '.join(problems)}")
    return value


CacheType = Literal["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
Pooling = Literal["last", "mean", "cls"]
ModelName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_word)]
Seconds = Annotated[float, Field(allow_inf_nan=False, le=86_400)]
