"""Bodies of embeddings requests, and the JSON of their answers."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from api.protocol.embeddings import check_dimensions, encode_answer, parse_embeddings
from api.protocol.fields import InvalidRequest
from tests.unit.cases import anything
from tests.unit.fake_jobs import WIDTH, vector

TEXTS = ["cat", "dog", "car engine"]


def parse(**fields: Any) -> list[str]:
    return parse_embeddings({"model": "e", "input": "x"} | fields, max_inputs=64).texts


@pytest.mark.parametrize(
    ("given", "texts"),
    [("x", ["x"]), (["x"], ["x"]), (["x", "y"], ["x", "y"]), ([" ", "\t\n", "\u200b"], [" ", "\t\n", "\u200b"])],
)
def test_input(given: Any, texts: list[str]) -> None:
    assert parse(input=given) == texts


@pytest.mark.parametrize(
    ("given", "param"),
    [
        *[(bad, "input") for bad in anything(None, "", [], {}, 5, True)],
        ([""], "input[0]"),
        (["a", "", "b"], "input[1]"),
        ([None], "input[0]"),
        (["a", {}], "input[1]"),
        ([True], "input[0]"),
        (["x"] * 65, "input"),
    ],
)
def test_wrong_input_is_named(given: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(input=given)
    assert caught.value.param == param


@pytest.mark.parametrize("given", [[[2028, 374]], [2028, 374], [[999999999]], [[-1]], [1, "a"], ["a", 1]])
def test_token_ids_are_told_that_text_is_wanted(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="text"):
        parse(input=given)


def test_too_many_inputs_names_the_limit() -> None:
    with pytest.raises(InvalidRequest, match="2048 texts; at most 64"):
        parse(input=["x"] * 2048)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("encoding_format", bad) for bad in ("md5", "FLOAT", 5, "")],
        *[("dimensions", bad) for bad in (0, -1, "8", 1.5, True)],
        *[("model", bad) for bad in (None, "", 5)],
    ],
)
def test_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**{field: value})
    assert caught.value.param == field


def test_wrong_encoding_format_names_both_values() -> None:
    with pytest.raises(InvalidRequest, match="'float' or 'base64'"):
        parse(encoding_format="md5")


@pytest.mark.parametrize("dimensions", [None, 1, 7, 8])
def test_dimensions_of_a_matryoshka_model(dimensions: int | None) -> None:
    check_dimensions(dimensions, 8, is_matryoshka=True)


@pytest.mark.parametrize(("dimensions", "is_matryoshka"), [(9, True), (2**40, True), (7, False), (9, False)])
def test_wrong_dimensions_name_the_width(dimensions: int, is_matryoshka: bool) -> None:
    with pytest.raises(InvalidRequest, match="8") as caught:
        check_dimensions(dimensions, 8, is_matryoshka)
    assert caught.value.param == "dimensions"


def test_full_width_needs_no_matryoshka_model() -> None:
    check_dimensions(8, 8, is_matryoshka=False)


def answer(encoding_format: str, dimensions: int | None = None) -> dict[str, Any]:
    rows = [vector(text).tobytes() for text in TEXTS]
    decoded: dict[str, Any] = json.loads(encode_answer("e", rows, 9, encoding_format, dimensions))
    return decoded


def test_float_answer() -> None:
    body = answer("float")
    assert body["object"] == "list"
    assert body["model"] == "e"
    assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert [item["index"] for item in body["data"]] == [0, 1, 2]
    for item, text in zip(body["data"], TEXTS, strict=True):
        assert item["object"] == "embedding"
        assert all(isinstance(value, float) for value in item["embedding"])
        assert np.array_equal(np.array(item["embedding"], "<f4"), vector(text))


def test_base64_is_little_endian_float32_equal_to_the_floats() -> None:
    for packed, plain in zip(answer("base64")["data"], answer("float")["data"], strict=True):
        unpacked = np.frombuffer(base64.b64decode(packed["embedding"], validate=True), "<f4")
        assert np.array_equal(unpacked, np.array(plain["embedding"], "<f4"))


@pytest.mark.parametrize("dimensions", [1, 3, WIDTH - 1, WIDTH])
def test_cut_vectors_have_norm_1(dimensions: int) -> None:
    for item, text in zip(answer("float", dimensions)["data"], TEXTS, strict=True):
        cut = np.array(item["embedding"])
        front = vector(text)[:dimensions]
        assert len(cut) == dimensions
        assert np.linalg.norm(cut) == pytest.approx(1.0, abs=1e-6)
        assert np.allclose(cut, front / np.linalg.norm(front), atol=1e-6)


def test_cut_that_leaves_only_zeros_stays_finite() -> None:
    row = np.array([0, 0, 1, 0], "<f4").tobytes()
    body = json.loads(encode_answer("e", [row], 1, "float", 2))
    assert body["data"][0]["embedding"] == [0.0, 0.0]
