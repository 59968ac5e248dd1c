"""Questions about tokens, as llama-server has them: JSON -> Query, and the answers."""

from typing import Any, NamedTuple

from api.protocol.fields import MAX_INT, Fields, InvalidRequest, kind
from tasks.contracts import GenerateRequest, Query

Json = dict[str, Any]


class Question(NamedTuple):
    model: str | None  #: None: the chat model
    query: Query


def parse_tokenize(body: Json) -> Question:
    """Raises InvalidRequest."""
    fields = Fields(body)
    content = fields.get("content")
    if not isinstance(content, str):
        raise InvalidRequest(f"'content' must be a string, not {kind(content)}.", "content")
    parse_special = fields.boolean("parse_special")
    query = Query(
        op="tokenize",
        reply_to="",
        text=content,
        add_special=fields.boolean("add_special") or False,
        parse_special=True if parse_special is None else parse_special,
        with_pieces=fields.boolean("with_pieces") or False,
    )
    return Question(fields.string("model"), query)


def parse_detokenize(body: Json) -> Question:
    """Raises InvalidRequest. Which ids the model has only a worker knows."""
    fields = Fields(body)
    tokens = fields.get("tokens")
    if not isinstance(tokens, list):
        raise InvalidRequest(f"'tokens' must be a list of token ids, not {kind(tokens)}.", "tokens")
    for index, token in enumerate(tokens):
        name = f"tokens[{index}]"
        if isinstance(token, bool) or not isinstance(token, int):
            raise InvalidRequest(f"'{name}' must be an integer, not {kind(token)}.", name)
        if not 0 <= token <= MAX_INT:
            raise InvalidRequest(f"'{name}' is {token}; a token id is 0 to {MAX_INT}.", name)
    return Question(fields.string("model"), Query(op="detokenize", reply_to="", tokens=tokens))


def template_query(request: GenerateRequest) -> Query:
    return Query(op="apply_template", reply_to="", request=request)


def count_query(request: GenerateRequest) -> Query:
    return Query(op="count", reply_to="", request=request)


def tokens_answer(values: Json) -> Json:
    """Token ids, or with each its piece: text, or a list of bytes where that is only part of a character."""
    tokens = values["tokens"]
    if "pieces" not in values:
        return {"tokens": tokens}
    pieces = zip(tokens, values["pieces"], strict=True)
    return {"tokens": [{"id": token, "piece": _shown(piece)} for token, piece in pieces]}


def count_answer(values: Json) -> Json:
    """OpenAI's, of /v1/responses/input_tokens, and llama-server's of the same for chat."""
    return {"object": "response.input_tokens", "input_tokens": values["tokens"]}


def _shown(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
