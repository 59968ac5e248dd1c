"""What the fake engine answers: a function of the request alone. Pure."""

import hashlib
import random
import re
from typing import NamedTuple

from tasks.contracts import FinishReason, GenerateRequest

WORDS = (
    *("time", "person", "year", "way", "day", "thing", "world", "life", "hand", "part", "child", "eye", "place"),
    *("week", "case", "point", "number", "group", "problem", "fact", "river", "stone", "garden", "letter", "noon"),
    *("naïve", "café", "Grüße", "мир", "猫", "水", "🙂", "🚀"),
)
MIN_ANSWER_TOKENS = 8
MAX_ANSWER_TOKENS = 64
TRAP_AFTER_TOKENS = 3  #: FAKE-CRASH, FAKE-HANG and FAKE-ERROR happen when so many tokens are out
TRAPS = ("FAKE-CRASH", "FAKE-HANG", "FAKE-ERROR")

_REPEAT = re.compile(r"Repeat exactly: (.*)", re.DOTALL)
_MARK = re.compile(r"MARK-\w+")
_TOKEN = re.compile(r"\s*\S+|\s+")


class Answer(NamedTuple):
    """A whole answer, cut at the first stop text or at `max_tokens`."""

    pieces: list[str]  #: the text of each generated token; empty where a stop text has swallowed it
    reason: FinishReason
    trap: str | None  #: one of TRAPS, which happens when the pieces are out


def prompt_text(request: GenerateRequest) -> str:
    """The prompt as one text: roles and contents, as a chat template would join them."""
    if request.messages is None:
        return "".join(request.prompts)
    return "\n".join(f"{message.get('role', '')} {message.get('content') or ''}" for message in request.messages)


def count_tokens(text: str) -> int:
    """A token is a word between white space; every text has at least one."""
    return max(len(text.split()), 1)


def answer(request: GenerateRequest, max_tokens: int) -> Answer:
    """The answer to the last user message, of at most `max_tokens` tokens."""
    prompt = prompt_text(request)
    pieces = _pieces(prompt, _last_user_text(request), max_tokens)
    reason = FinishReason.LENGTH if len(pieces) > max_tokens else FinishReason.STOP
    pieces = pieces[:max_tokens]
    trap = next((trap for trap in TRAPS if trap in prompt), None)
    if trap:
        return Answer(pieces[:TRAP_AFTER_TOKENS], reason, trap)
    stopped = _cut_at_stop(pieces, request.stop)
    return Answer(pieces, reason, None) if stopped is None else Answer(stopped, FinishReason.STOP, None)


def _last_user_text(request: GenerateRequest) -> str:
    users = [message for message in request.messages or () if message.get("role") == "user"]
    return str(users[-1].get("content") or "") if users else "".join(request.prompts)


def _pieces(prompt: str, question: str, max_tokens: int) -> list[str]:
    """All tokens that the model wants to say; one more than `max_tokens` when it would go on."""
    if repeat := _REPEAT.search(question):
        return _TOKEN.findall(repeat[1])[: max_tokens + 1]
    # Seeded by a hash of the text: Python's own hash() differs from process to process.
    rng = random.Random(hashlib.sha256(prompt.encode("utf-8", "replace")).digest())  # noqa: S311 - text, no secret
    length = rng.randint(MIN_ANSWER_TOKENS, MAX_ANSWER_TOKENS)
    if "Never stop" in prompt:
        length = max_tokens + 1
    words = (_MARK.findall(question) + rng.choices(WORDS, k=length))[: max_tokens + 1]
    return [word if index == 0 else " " + word for index, word in enumerate(words)]


def _cut_at_stop(pieces: list[str], stops: list[str]) -> list[str] | None:
    """The pieces up to the token that completes the first stop text, without that text. None: none is in it."""
    text = "".join(pieces)
    found = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop and stop in text]
    if not found:
        return None
    completed_at, visible = min(found)
    cut: list[str] = []
    end = 0
    for piece in pieces:
        cut.append(piece[: max(visible - end, 0)])
        end += len(piece)
        if end >= completed_at:
            break
    return cut
