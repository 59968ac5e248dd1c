"""Good requests, and what a seeded hand makes of their bodies."""

import copy
import json
import random
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

CHAT, EMBED = "smollm2-135m", "all-minilm-l6-v2"  # tests/stack.py
MIB = 2**20


class Case(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


MESSAGES = [{"role": "user", "content": "Name a colour."}]
TOOL = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": TOOL}}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": CHAT, "messages": MESSAGES, "max_tokens": 8}),
    ("/v1/chat/completions", {"model": CHAT, "messages": MESSAGES, "max_tokens": 8, "stream": True}),
    ("/chat/completions", {"model": CHAT, "messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"model": CHAT, "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"}),
    ("/v1/chat/completions", {"model": CHAT, "messages": MESSAGES, "response_format": {"type": "json_object"}}),
    ("/v1/completions", {"model": CHAT, "prompt": ["a", "b"], "max_tokens": 4, "echo": True, "stop": ["x"]}),
    ("/v1/completions", {"model": CHAT, "prompt": "a", "stream": True, "logit_bias": {"5": -100}}),
    ("/v1/responses", {"model": CHAT, "input": "Name a colour.", "max_output_tokens": 8}),
    ("/v1/responses", {"model": CHAT, "input": MESSAGES, "stream": True, "text": {"format": {"type": "text"}}}),
    ("/v1/responses/input_tokens", {"model": CHAT, "input": "x"}),
    ("/v1/embeddings", {"model": EMBED, "input": ["a text", "another"]}),
    ("/v1/embeddings", {"model": EMBED, "input": "a text", "encoding_format": "base64"}),
    ("/tokenize", {"content": "a text", "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/apply-template", {"messages": MESSAGES}),
    ("/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
]
GETS = [
    "/health",
    "/v1/models",
    f"/v1/models/{CHAT}",
    "/v1/models/none",
    "/v1/queue",
    "/openapi.json",
    "/v1/responses/x",
]

SCALARS: list[Any] = [None, True, False, 0, -1, 1, 0.5, -0.0, 2**31, 2**53, 2**63, 2**64, -(2**63), 1e308, 5e-324]
SCALARS += [
    "",
    " ",
    "\0",
    "x" * 5000,
    "\u202e",
    "\ud7ff\ue000",
    "😀",
    "1",
    "null",
    "-1",
    [],
    {},
    [[]],
    [None],
    {"": {}},
]
#: not of Python's own encoder: put in as they are
RAW = [
    b"1e999",
    b"-1e999",
    b"1" * 400,
    b"0." + b"3" * 400,
    b'"\\ud800"',
    b'"\\u0000"',
    b"NaN",
    b"Infinity",
    b"01",
    b"+1",
]
RAW += [
    b"'x'",
    b'"\x00"',
    b'"\xff\xfe"',
    b'"\xc3"',
    b'"\xed\xa0\x80"',
    b"[" * 3000,
    b"[" * 60 + b"]" * 60,
    b'{"a":' * 800,
]


def sample(rng: random.Random) -> Case:
    path, body = rng.choice(BODIES)
    return Case("POST", path, json.dumps(body).encode())


def look(rng: random.Random) -> Case:
    return Case("GET", rng.choice(GETS))


def either(rng: random.Random) -> Case:
    return look(rng) if rng.random() < 0.4 else sample(rng)


# -- bodies --------------------------------------------------------------------------------------


def reshaped(rng: random.Random) -> Case:
    """Another value somewhere in a good body."""
    case = sample(rng)
    body = json.loads(case.body)
    for _ in range(rng.randint(1, 3)):
        _change(rng, body)
    return case._replace(body=json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"))


def _change(rng: random.Random, root: dict[str, Any]) -> None:
    place: Any = root
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
            place = inner
            continue
        if rng.random() < 0.15:
            del place[key]
        else:
            place[key] = copy.deepcopy(rng.choice([*SCALARS, [inner], {"a": inner}, [inner] * 200]))
        return


def rewritten(rng: random.Random) -> Case:
    """A good body in which a value's text is something that no encoder writes, or a name comes twice."""
    case = sample(rng)
    body = json.loads(case.body)
    name = rng.choice(list(body))
    raw = rng.choice(RAW)
    mark = json.dumps("MARK")
    text = json.dumps({**body, name: "MARK"}).encode().replace(mark.encode(), raw)
    if rng.random() < 0.3:
        text = text[:-1] + b', "' + name.encode() + b'": ' + raw + b"}"
    return case._replace(body=text)


def damaged(rng: random.Random) -> Case:
    """Bytes of a good body changed, left out or put in."""
    case = sample(rng)
    data = bytearray(case.body)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(4):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                del data[at : at + rng.randint(1, 20)]
            case _:
                data = data[: at + 1]
    return case._replace(body=bytes(data))


def deep(rng: random.Random) -> Case:
    """Nested lists or objects, at the top or in a field."""
    n = rng.choice([50, 65, 500, 1000, 5000, 100_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
    nest = opening * n + b"1" + closing * (n if rng.random() < 0.8 else 0)
    case = sample(rng)
    if rng.random() < 0.3:
        return case._replace(body=nest)
    fields = [b"messages", b"tools", b"metadata", b"input", b"chat_template_kwargs", b"response_format", b"json_schema"]
    return case._replace(body=case.body[:-1] + b', "' + rng.choice(fields) + b'": ' + nest + b"}")


def packed(rng: random.Random) -> Case:
    """Compressed, well or badly; some bodies are far larger inside than the limit."""
    case = sample(rng)
    name = rng.choice(["gzip", "deflate", "x-gzip", "br", "gzip, gzip", "identity", "GZIP"])
    bits = 31 if "gzip" in name.lower() else rng.choice([15, -15])
    packer = zlib.compressobj(wbits=bits)
    if rng.random() < 0.03:
        data = packer.compress(bytes(64 * MIB)) + packer.flush()
    else:
        data = packer.compress(case.body) + packer.flush()
    match rng.randrange(4):
        case 0:
            data = data[: rng.randrange(len(data))]
        case 1:
            data += rng.randbytes(20)
        case 2:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(1) + data[at + 1 :]
    return case._replace(body=data, headers=(("Content-Encoding", name),))


BODIES_KINDS: dict[str, Callable[[random.Random], Case]] = {
    "body: another value": reshaped,
    "body: odd JSON": rewritten,
    "body: bytes": damaged,
    "body: deep": deep,
    "body: packed": packed,
}
