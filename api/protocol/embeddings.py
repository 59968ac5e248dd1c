"""POST /v1/embeddings: JSON -> EmbeddingsBody, and its answer."""

import base64
import math
import sys
from array import array
from typing import Any, NamedTuple

import msgspec

from api.protocol.fields import Fields, InvalidRequest, kind

FORMATS = ("float", "base64")


class EmbeddingsBody(NamedTuple):
    model: str
    texts: list[str]
    encoding_format: str
    dimensions: int | None


def parse_embeddings(body: dict[str, Any], max_inputs: int) -> EmbeddingsBody:
    """Raises InvalidRequest."""
    fields = Fields(body)
    model = fields.required_string("model")
    encoding_format = fields.string("encoding_format")
    if encoding_format is None:
        encoding_format = "float"
    elif encoding_format not in FORMATS:
        raise InvalidRequest("'encoding_format' must be 'float' or 'base64'.", "encoding_format")
    return EmbeddingsBody(model, _read_texts(fields, max_inputs), encoding_format, fields.integer("dimensions", 1))


def _read_texts(fields: Fields, max_inputs: int) -> list[str]:
    given = fields.get("input")
    if isinstance(given, str):
        if not given:
            raise InvalidRequest("'input' is an empty string.", "input")
        return [given]
    if not isinstance(given, list):
        raise InvalidRequest(f"'input' must be a string or a list of strings, not {kind(given)}.", "input")
    if not given:
        raise InvalidRequest("'input' is an empty list; it must have at least one text.", "input")
    for index, text in enumerate(given):
        if isinstance(text, list) or (isinstance(text, int) and not isinstance(text, bool)):
            raise InvalidRequest(
                "'input' holds token ids, which belong to another tokenizer; send text: a string or a list of strings.",
                "input",
            )
        if not isinstance(text, str) or not text:
            wrong = "is empty" if text == "" else f"must be a string, not {kind(text)}"
            raise InvalidRequest(f"'input[{index}]' {wrong}.", f"input[{index}]")
    if len(given) > max_inputs:
        raise InvalidRequest(f"'input' has {len(given)} texts; at most {max_inputs} are taken per request.", "input")
    return given


def check_dimensions(dimensions: int | None, width: int, is_matryoshka: bool) -> None:
    """`width` is always right. Less only where the model was trained so that a vector's front stands alone."""
    if dimensions is None or dimensions == width:
        return
    if not is_matryoshka:
        raise InvalidRequest(
            f"'dimensions' is {dimensions}; this model's vectors have {width} and may not be cut.", "dimensions"
        )
    if dimensions > width:
        raise InvalidRequest(f"'dimensions' is {dimensions}; this model's vectors have {width}.", "dimensions")


def encode_answer(
    model: str, vectors: list[bytes], prompt_tokens: int, encoding_format: str, dimensions: int | None
) -> bytes:
    """The answer's JSON. `vectors` are rows of little-endian float32; cut rows are brought back to norm 1.

    Takes about 0.1 ms per thousand floats.
    """
    data = [
        {"object": "embedding", "index": index, "embedding": _embedding(row, encoding_format, dimensions)}
        for index, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})


def _embedding(row: bytes, encoding_format: str, dimensions: int | None) -> msgspec.Raw | str:
    """JSON of one row, encoded at once: a list of all the floats of a large answer would be ten times its size.

    The standard library's arrays do: NumPy would add 20 MiB to a process that needs nothing else of it.
    """
    vector = _swapped(array("f", row))
    if dimensions is not None and dimensions < len(vector):
        vector = vector[:dimensions]
        norm = math.hypot(*vector)
        vector = array("f", [value / norm for value in vector]) if norm > 0 else vector
    if encoding_format == "base64":
        return base64.b64encode(_swapped(vector).tobytes()).decode()
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))


def _swapped(vector: "array[float]") -> "array[float]":
    """Between little-endian and this machine's order."""
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
