"""Messages from the API to a worker and its engine process."""

from enum import StrEnum
from typing import Any

import msgspec

from tasks.contracts.keys import Lane


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Defaults are llama.cpp's own (`llama-server --help`)."""

    temperature: float = 0.8  #: 0: always the most probable token
    top_k: int = 40  #: 0: off
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None  #: None: another one each time
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  #: tokens the penalties look back; -1: the window
    typical_p: float = 1.0  #: locally typical sampling; 1: off
    xtc_probability: float = 0.0  #: chance, per token, that XTC removes the likely ones; 0: off
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0  #: strength of the DRY penalty for repeated sequences; 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  #: tokens DRY looks back; -1: the window, 0: off
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  #: 1 or 2: that version of Mirostat instead of top_k, top_p and min_p
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: list[tuple[int | str, float]] = []  #: token id, or a text all of whose tokens get it, and what is added
    ignore_eos: bool = False  #: go on until `max_tokens`
    min_tokens: int = 0  #: no end of generation before so many tokens


class GrammarKind(StrEnum):
    JSON_OBJECT = "json_object"  #: any JSON object; `source` is empty
    JSON_SCHEMA = "json_schema"
    GBNF = "gbnf"  #: llama.cpp's own notation


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer must conform to, enforced while sampling (tasks/grammars.py)."""

    kind: GrammarKind
    source: str = ""


class ToolChoice(StrEnum):
    """Whether the answer calls tools. A request without tools has no choice."""

    AUTO = "auto"  #: as the model likes
    REQUIRED = "required"  #: at least one call, of `GenerateRequest.tool_name` when that is set


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One chat (`messages`) or text completion (`prompts`). Sent as the only argument of `CHAT_TASK`."""

    id: str
    model: str
    reply_to: str  #: `api_id`: frames go to `reply_channel(reply_to)`
    lane: Lane = Lane.INTERACTIVE
    share: int = 0  #: whose turn it takes: requests of one API key have one number, and lanes go round the numbers
    caller: str = ""  #: name of the API key that it came with
    deadline_ms: int = 0  #: unix ms, the API's clock, after which nobody wants the answer's beginning; 0: none given
    attempt: int = 1  #: 2 when a worker died with it before a token was sent
    created_ms: int = 0  #: unix ms when the API accepted it
    messages: list[dict[str, Any]] | None = None  #: OpenAI messages with plain-text content (api/protocol/messages.py)
    prompts: list[str] = []  #: text completions: one or several, when there are no `messages`
    suffix: str | None = None  #: fill in between each prompt and this text
    n: int = 1  #: choices for each prompt; choice number `prompt * n + i`
    logprobs: int | None = None  #: with each token its log probability and so many alternatives (0..20); None: without
    grammar: Grammar | None = None
    tools: list[dict[str, Any]] | None = None  #: OpenAI tool definitions, given to the chat template
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool_name: str | None = None  #: the one function that may be called; with `ToolChoice.REQUIRED`
    parallel_tool_calls: bool = True  #: False: at most one call
    template_kwargs: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    max_tokens: int | None = None  #: of each choice. None: up to LIS_MAX_MODEL_LENGTH or what the window leaves
    stop: list[str] = []


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of an embeddings request. Sent as the only argument of `EMBED_TASK`."""

    id: str  #: of this slice; slice 0 has the request's id
    model: str
    reply_to: str  #: as above; empty: it came from a program, and the worker itself takes the vectors
    lane: Lane = Lane.INTERACTIVE
    share: int = 0  #: whose turn it takes: requests of one API key have one number, and lanes go round the numbers
    caller: str = ""  #: name of the API key that it came with
    deadline_ms: int = 0  #: unix ms, the API's clock, after which nobody wants the answer's beginning; 0: none given
    attempt: int = 1
    created_ms: int = 0
    texts: list[str] = []


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """API -> engine process, over `control_channel`."""

    op: str  #: `cancel`, `resend` (frames from `from_seq` on), or `query`
    id: str
    from_seq: int = 0
    query: "Query | None" = None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A question about tokens, answered by the engine process at once, beside the queue, with a `Replied` frame."""

    op: str  #: `tokenize`, `detokenize`, `apply_template` or `count` (tokens of a whole prompt)
    reply_to: str
    text: str = ""
    tokens: list[int] = []
    request: GenerateRequest | None = None  #: whose messages, tools and template arguments are to be rendered
    add_special: bool = False  #: tokenize: with BOS where the model wants one
    parse_special: bool = True  #: tokenize: control tokens spelled in the text become those tokens
    with_pieces: bool = False  #: tokenize: each token with its text
