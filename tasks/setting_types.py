"""Types of settings that need more than pydantic's own limits, and the words for what they may be."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import psutil
from pydantic import AfterValidator, Field, SecretStr

from tasks.api_keys import doubles, parse_value

_HERE = Path(__file__).parents[1]
#: The checkout, wherever a process is started from; where the package is installed without one, the current directory.
PROJECT_ROOT = _HERE if (_HERE / "pyproject.toml").is_file() else Path.cwd()
ENV_FILE = PROJECT_ROOT / ".env"

#: Fields for which an empty value says something. For all others `LIS_X=` is as good as not set.
MAY_BE_EMPTY = frozenset(
    {
        *(
            "api_key",
            "api_keys_file",
            "redis_url",
            "result_backend",
            "files_url",
            "hf_token",
            "worker_name",
            "cors_origins",
            "chat_template_path",
        ),
        *("gguf_repo", "gguf_file", "gguf_path"),
        *("embedding_gguf_repo", "embedding_gguf_file", "embedding_gguf_path", "embedding_input_prefix"),
    }
)
LOWER_CASE = frozenset({"admission", "backend", "flash_attn", "cache_type_k", "cache_type_v", "embedding_pooling"})


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


def folder_url(value: SecretStr) -> SecretStr:
    """A path, or a URL `scheme://…` with something behind it. Which schemes there are is known where it is opened."""
    scheme, separator, rest = value.get_secret_value().partition("://")
    if separator and not (scheme.isascii() and scheme.replace("+", "").replace("-", "").isalnum() and rest.strip("/")):
        raise ValueError("it must be a folder, or a URL like s3://bucket/folder")
    return value


CacheType = Literal["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
Pooling = Literal["last", "mean", "cls"]
ModelName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_word)]
Seconds = Annotated[float, Field(allow_inf_nan=False, le=86_400)]
LongSeconds = Annotated[float, Field(allow_inf_nan=False, le=315_360_000)]  #: ten years


def env(name: str, default: Any, meaning: str, **limits: Any) -> Any:
    """A field that `LIS_` and `name` set; `meaning` is for the README's table."""
    return Field(default, validation_alias="LIS_" + name, description=meaning, **limits)
