"""`logit_bias`: what is added to the logits of single tokens."""

from collections.abc import Iterable
from typing import Any

from api.protocol.fields import MAX_INT, Fields, InvalidRequest, kind

MAX_BIASES = 1024
MAX_BIAS_TEXT_CHARS = 1000
BANNED = -1e9  #: llama.cpp's `false`: never. Minus infinity would not survive JSON on the way to the worker


def read_logit_bias(fields: Fields) -> list[tuple[int | str, float]]:
    """OpenAI's map from token id to -100..100, whose keys may also be texts; or llama.cpp's list of such pairs."""
    given = fields.get("logit_bias")
    if given is None:
        return []
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(given, dict):
        pairs = ((int(key) if key.isdecimal() and key.isascii() else key, bias) for key, bias in given.items())
    elif isinstance(given, list):
        pairs = (_pair(item, index) for index, item in enumerate(given))
    else:
        raise fields.wrong("logit_bias", "an object or a list of pairs")
    if len(given) > MAX_BIASES:
        raise InvalidRequest(f"'logit_bias' has {len(given)} entries; at most {MAX_BIASES} are taken.", "logit_bias")
    return [(_token(token), _bias(token, bias)) for token, bias in pairs]


def _pair(item: Any, index: int) -> tuple[Any, Any]:
    if not isinstance(item, list) or len(item) != 2:
        raise InvalidRequest(f"'logit_bias[{index}]' must be a pair: a token id or a text, and its bias.", "logit_bias")
    return item[0], item[1]


def _token(token: Any) -> int | str:
    if isinstance(token, str) and 0 < len(token) <= MAX_BIAS_TEXT_CHARS:
        return token
    if isinstance(token, int) and not isinstance(token, bool) and 0 <= token <= MAX_INT:
        return token
    raise InvalidRequest(
        f"'logit_bias' is for token ids from 0 on and for texts of up to {MAX_BIAS_TEXT_CHARS} characters.",
        "logit_bias",
    )


def _bias(token: Any, bias: Any) -> float:
    if bias is False:
        return BANNED
    shown = str(token)[:50]
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise InvalidRequest(
            f"'logit_bias' of '{shown}' must be a number or false, not {kind(bias)}.",
            "logit_bias",
        )
    if not -100 <= bias <= 100:
        raise InvalidRequest(f"'logit_bias' of '{shown}' is {bias}; it must be from -100 to 100.", "logit_bias")
    return float(bias)
