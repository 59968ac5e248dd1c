"""What the fake engine answers, a function of the request alone, and how it counts words."""

import hashlib
import json
import random
import re
import threading
from collections.abc import Sequence
from typing import NamedTuple

from tasks.contracts import FinishReason, GenerateRequest, GrammarKind, TokenLogprob, ToolChoice
from tasks.engines.base import InvalidRequest
from tasks.engines.fake_json import smallest_value

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
    """A whole choice, cut at the first stop text or at `max_tokens`."""

    pieces: list[str]  #: the text of each generated token; empty where a stop text has swallowed it
    reason: FinishReason
    trap: str | None  #: one of TRAPS, which happens when the pieces are out
    calls: str = ""  #: the tool whose arguments the pieces are
    is_clock: bool = False  #: the time is to be said in place of each piece


class WordTokens:
    """Numbers for words, in the order in which they are asked for. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}

    def ids(self, text: str) -> list[int]:
        with self._lock:
            return [self._ids.setdefault(piece, len(self._ids)) for piece in _TOKEN.findall(text)]

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """Raises InvalidRequest: a number that no word has got yet."""
        with self._lock:
            known = [piece.encode("utf-8", "replace") for piece in self._ids]
        for index, token in enumerate(tokens):
            if not 0 <= token < len(known):
                name = f"tokens[{index}]"
                raise InvalidRequest(f"{name} is {token}; this model has {len(known)} tokens.", name)
        return [known[token] for token in tokens]


def prompt_texts(request: GenerateRequest) -> list[str]:
    """Each prompt as one text; of a chat the roles and contents, as a chat template would join them."""
    if request.messages is None:
        return request.prompts or [""]
    turns = (f"{message.get('role', '')} {message.get('content') or ''}" for message in request.messages)
    return ["\n".join(turns)]


def count_tokens(text: str) -> int:
    """A token is a word between white space; every text has at least one."""
    return max(len(text.split()), 1)


def answer(request: GenerateRequest, max_tokens: int, choice: int = 0) -> Answer:
    """Choice `choice` of the request, of at most `max_tokens` tokens: an answer to the last user message."""
    prompt = prompt_texts(request)[choice // request.n]
    text, tool = _demanded(request)
    if text is None:
        variant = f"\nchoice {choice % request.n}" if choice % request.n else ""
        pieces = _pieces(prompt + variant, _last_user_text(request, prompt), max_tokens)
    else:
        pieces = _TOKEN.findall(text)
    ending = FinishReason.TOOL_CALLS if tool else FinishReason.STOP
    reason = FinishReason.LENGTH if len(pieces) > max_tokens else ending
    pieces = pieces[:max_tokens]
    if tool:
        return Answer(pieces, reason, None, tool)
    trap = next((trap for trap in TRAPS if trap in prompt), None)
    if trap:
        return Answer(pieces[:TRAP_AFTER_TOKENS], reason, trap)
    stopped = _cut_at_stop(pieces, request.stop)
    if stopped is not None:
        return Answer(stopped, FinishReason.STOP, None)
    return Answer(pieces, reason, None, is_clock="FAKE-CLOCK" in prompt)


def made_up_logprobs(pieces: list[str], n_top: int) -> list[TokenLogprob]:
    """One for each piece that is not empty, itself the most probable; the same for the same piece."""
    made = []
    for piece in filter(None, pieces):
        token = piece.encode("utf-8", "replace")
        best = -0.01 * (1 + sum(token) % 50)
        others = [(f" other{rank}".encode(), best - rank) for rank in range(1, n_top)]
        made.append(TokenLogprob(token, best, [(token, best), *others] if n_top else []))
    return made


def _demanded(request: GenerateRequest) -> tuple[str | None, str]:
    """JSON that the request demands, and the tool whose arguments it is, if it is that."""
    if request.tools and request.tool_choice is ToolChoice.REQUIRED:
        functions = [tool.get("function", {}) for tool in request.tools]
        function = next((one for one in functions if one.get("name") == request.tool_name), functions[0])
        arguments = smallest_value(function.get("parameters") or {"type": "object"})
        return json.dumps(arguments, ensure_ascii=False), str(function.get("name"))
    if request.grammar and request.grammar.kind is GrammarKind.JSON_SCHEMA:
        return json.dumps(smallest_value(json.loads(request.grammar.source)), ensure_ascii=False), ""
    if request.grammar and request.grammar.kind is GrammarKind.JSON_OBJECT:
        return "{}", ""
    return None, ""


def _last_user_text(request: GenerateRequest, prompt: str) -> str:
    users = [message for message in request.messages or () if message.get("role") == "user"]
    return str(users[-1].get("content") or "") if users else prompt


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
