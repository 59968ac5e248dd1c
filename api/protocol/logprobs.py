"""Log probabilities of tokens, in the shapes of chat and of the older completions."""

import codecs
import math
from collections.abc import Sequence
from typing import Any

from api.protocol.fields import Fields, InvalidRequest
from tasks.contracts import TokenLogprob

MAX_TOP_LOGPROBS = 20  #: OpenAI's limit for chat
UNLIKELY = -9999.0  #: OpenAI's number for what has no finite logarithm; JSON has no infinity


def read_chat_logprobs(fields: Fields) -> int | None:
    """`logprobs` and `top_logprobs`: how many alternatives each token gets; None: no log probabilities."""
    wanted = fields.boolean("logprobs") or False
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if wanted:
        return top or 0
    if top:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return None


def read_completion_logprobs(fields: Fields) -> int | None:
    """`logprobs` of /v1/completions is a number itself. `false`, which some clients send, is as if it were absent."""
    if fields.get("logprobs") is False:
        return None
    return fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        _chat_token(token.token, token.logprob)
        | {"top_logprobs": [_chat_token(text, logprob) for text, logprob in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": finite(logprob), "bytes": list(token)}


class LegacyLogprobs:
    """The shape of /v1/completions. `text_offset` counts characters of the choice's text, over all its chunks."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def block(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Of the next tokens. The generated token is among its alternatives even where it is none of the best."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.token))
        return {
            "tokens": [token_text(token.token, "bytes:") for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [_alternatives(token) for token in tokens],
            "text_offset": offsets,
        }


def _alternatives(token: TokenLogprob) -> dict[str, float]:
    result: dict[str, float] = {}
    for text, logprob in [*token.top, (token.token, token.logprob)]:
        result.setdefault(token_text(text, "bytes:"), finite(logprob))
    return result


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float:
    """Per token, so that a long text is not worse for its length. An empty one is the worst."""
    return sum(finite(token.logprob) for token in tokens) / len(tokens) if tokens else -math.inf


def token_text(token: bytes, prefix: str = "") -> str:
    r"""Its text; of a token that is no whole character the bytes, as OpenAI writes them: `\xf0\x9f`."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in token)


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else UNLIKELY
