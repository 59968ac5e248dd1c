"""How the next token is chosen, and where the answer ends: the fields chat and completions share."""

from typing import Any

from api.protocol.fields import MAX_INT, Fields, InvalidRequest
from api.protocol.logit_bias import read_logit_bias
from tasks.contracts import Sampling

MAX_STOPS = 64  #: OpenAI takes 4; agents send more. Each is looked for after every token
MAX_STOP_CHARS = 1000
# llama.cpp reads the seed 2**32 - 1 as "choose one": the modulus keeps that value out, so every seed repeats
SEED_MODULUS = 2**32 - 1
MAX_BREAKERS = 32  #: each is looked up in the whole vocabulary when the request starts
MAX_BREAKER_CHARS = 40  #: llama.cpp looks at no more


def read_sampling(fields: Fields) -> Sampling:
    """Ranges are OpenAI's where it has the field, else llama.cpp's. A `top_k` of -1 is 0, off."""
    seed = fields.integer("seed")
    top_k = fields.integer("top_k", -1)
    repeat_last_n = fields.integer("repeat_last_n", -1)
    given: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "min_p": fields.number("min_p", 0, 1),
        "top_k": None if top_k is None else min(max(top_k, 0), MAX_INT),
        "seed": None if seed is None else seed % SEED_MODULUS,
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "repeat_penalty": read_repeat_penalty(fields),
        "repeat_last_n": None if repeat_last_n is None else min(repeat_last_n, MAX_INT),
        "typical_p": fields.number("typical_p", 0, 1),
        "xtc_probability": fields.number("xtc_probability", 0, 1),
        "xtc_threshold": fields.number("xtc_threshold", 0, 1),
        **_read_dry(fields),
        "mirostat": fields.integer("mirostat", 0, 2),
        "mirostat_tau": fields.number("mirostat_tau", 0, 100),
        "mirostat_eta": fields.number("mirostat_eta", 0, 1),
        "logit_bias": read_logit_bias(fields),
        "ignore_eos": fields.boolean("ignore_eos"),
        "min_tokens": read_min_tokens(fields),
    }
    return Sampling(**{name: value for name, value in given.items() if value is not None})


def _read_dry(fields: Fields) -> dict[str, Any]:
    """The penalty for repeated sequences of tokens. `dry_penalty_last_n` is -1 for the window, 0 for off."""
    last_n = fields.integer("dry_penalty_last_n", -1)
    return {
        "dry_multiplier": fields.number("dry_multiplier", 0, 100),
        "dry_base": fields.number("dry_base", 1, 100),
        "dry_allowed_length": fields.integer("dry_allowed_length", 0, MAX_INT),
        "dry_penalty_last_n": None if last_n is None else min(last_n, MAX_INT),
        "dry_sequence_breakers": _read_breakers(fields),
    }


def _read_breakers(fields: Fields) -> tuple[str, ...] | None:
    """Texts over which no repetition is counted. An empty list: there are none."""
    name = "dry_sequence_breakers"
    given = fields.items(name)
    if given is None:
        return None
    if len(given) > MAX_BREAKERS:
        raise InvalidRequest(f"'{name}' has {len(given)} texts; at most {MAX_BREAKERS} are taken.", name)
    for index, text in enumerate(given):
        if not isinstance(text, str) or not 0 < len(text) <= MAX_BREAKER_CHARS:
            raise InvalidRequest(f"'{name}[{index}]' must be a string of 1 to {MAX_BREAKER_CHARS} characters.", name)
    return tuple(given)


def read_min_tokens(fields: Fields) -> int | None:
    least, most = fields.integer("min_tokens", 0), read_max_tokens(fields)
    if least and most is not None and least > most:
        raise InvalidRequest(f"'min_tokens' is {least}; it must be at most 'max_tokens' ({most}).", "min_tokens")
    return None if least is None else min(least, MAX_INT)


def read_choices(fields: Fields, max_n: int, name: str = "n") -> int:
    """How many answers are wanted for one prompt; `max_n` is the server's limit."""
    return fields.integer(name, 1, max_n) or 1


def read_repeat_penalty(fields: Fields) -> float | None:
    value = fields.number("repeat_penalty", 0, 10)
    if value == 0:  # logits are divided by it
        raise InvalidRequest("'repeat_penalty' is 0; it must be above 0 (1 is off).", "repeat_penalty")
    return value


def read_max_tokens(fields: Fields) -> int | None:
    """`max_completion_tokens` is the newer name, and wins. Huge limits are common, and mean as many as fit."""
    older = fields.integer("max_tokens", 1)
    newer = fields.integer("max_completion_tokens", 1)
    limit = older if newer is None else newer
    return None if limit is None else min(limit, MAX_INT)


def read_stop(fields: Fields) -> list[str]:
    """A string or a list of strings. Empty ones would end every answer at once, and are ignored."""
    value = fields.get("stop")
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise fields.wrong("stop", "a string or a list of strings")
    for index, text in enumerate(stops):
        if not isinstance(text, str):
            raise InvalidRequest(f"'stop[{index}]' must be a string.", "stop")
        if len(text) > MAX_STOP_CHARS:
            raise InvalidRequest(
                f"'stop[{index}]' has {len(text)} characters; at most {MAX_STOP_CHARS} are taken.", "stop"
            )
    kept = list(dict.fromkeys(text for text in stops if text))
    if len(kept) > MAX_STOPS:
        raise InvalidRequest(f"'stop' has {len(kept)} texts; at most {MAX_STOPS} are taken.", "stop")
    return kept


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """`stream` and `stream_options.include_usage`. The options of a request that does not stream change nothing."""
    stream = fields.boolean("stream") or False
    options = fields.mapping("stream_options") or {}
    include_usage = Fields(options, "stream_options").boolean("include_usage") or False
    return stream, stream and include_usage
