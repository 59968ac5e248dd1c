"""Reported bugs of embeddings: their format, their numbers, long and many texts; with a real model."""

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.service_calls import CHATS, COMPLETIONS, EMBEDDINGS, GREEDY, Service, Vectors, chat_body, error_of, good
from tests.stack import CHAT, EMBED
from tests.unit.cases import anything

WIDTH = 384
WINDOW = 512  #: tokens of one text, its two marks included


def cosine(a: Vectors, b: Vectors) -> float:
    return float(np.dot(a, b))


# -- format ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["What is AI?", ["What is AI?"], ["one", "two words", "three words here"]])
def test_base64_is_the_floats(real: Service, given: Any) -> None:
    """EMF-01: and floats come where nothing is asked for."""
    floats = np.array([item["embedding"] for item in good(real.embed(given, encoding_format="float")).json()["data"]])
    packed = good(real.embed(given, encoding_format="base64")).json()["data"]
    assert all(isinstance(item["embedding"], str) for item in packed)
    unpacked = np.array([np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4") for item in packed])
    assert np.abs(unpacked - floats).max() < 1e-6
    for fields in ({}, {"encoding_format": None}):
        assert good(real.embed(given, **fields)).json()["data"][0]["embedding"] == pytest.approx(floats[0])


@pytest.mark.parametrize("encoding_format", ["md5", "FLOAT", "", "int8", 5, [], {}, True], ids=ascii)
def test_unknown_encoding_is_named_with_those_there_are(fake: Service, encoding_format: Any) -> None:
    """EMF-02"""
    error = error_of(fake.embed("x", encoding_format=encoding_format), 400)
    assert error["param"] == "encoding_format"
    if isinstance(encoding_format, str):
        assert "float" in error["message"]
        assert "base64" in error["message"]


@pytest.mark.parametrize("n_words", [1, 2, 50, 400])
def test_text_of_any_length_is_one_flat_vector(real: Service, n_words: int) -> None:
    """EMF-03"""
    body = good(real.embed("word " * n_words)).json()
    assert (body["object"], body["model"]) == ("list", EMBED)
    [item] = body["data"]
    assert (item["object"], item["index"], len(item["embedding"])) == ("embedding", 0, WIDTH)
    assert all(isinstance(value, float) for value in item["embedding"])


TOKEN_IDS = anything([[2028, 374, 264]], [2028, 374, 264], [[999_999_999]], [[-1]], [-1], [1, "a"], ["a", 1], [[]])
EMPTY = anything([], "", None, [""], {}, 5, [None], ["a", ""], ["a", None], [True], True, [{}], [["a"]], [1.5])


@pytest.mark.parametrize(
    "given",
    [
        *[pytest.param(given, id=f"EMF-05 {given}") for given in TOKEN_IDS],
        *[pytest.param(given, id=f"EMF-06 {given}") for given in EMPTY],
    ],
)
def test_input_that_is_no_text_is_refused(fake: Service, given: Any) -> None:
    error = error_of(fake.embed(given), 400)
    assert error["param"].startswith("input")
    assert "text" in error["message"] or "string" in error["message"] or "empty" in error["message"]


def test_no_input_at_all(fake: Service) -> None:
    """EMF-06"""
    assert error_of(fake.post(EMBEDDINGS, {"model": EMBED}), 400)["param"] == "input"


def test_each_model_does_its_own_work_only(real: Service) -> None:
    """EMF-09"""
    with real.nothing_starts():
        for path, body in (
            (EMBEDDINGS, {"model": CHAT, "input": "Hi"}),
            (CHATS, chat_body("Hi") | {"model": EMBED}),
            (CHATS, chat_body("Hi") | {"model": EMBED, "stream": True}),
            (COMPLETIONS, {**GREEDY, "model": EMBED, "prompt": "Hi"}),
        ):
            error = error_of(real.post(path, body), 400)
            assert error["param"] == "model"
            assert body["model"] in error["message"]
    real.assert_alive()


@pytest.mark.parametrize("dimensions", [0, -1, 383, 385, 10**12, "384", 1.5, [384], True])
def test_other_widths_than_the_models_are_refused(fake: Service, dimensions: Any) -> None:
    """EMF-02: never a vector of another width than was asked for."""
    assert error_of(fake.embed("x", dimensions=dimensions), 400)["param"] == "dimensions"
    assert len(good(fake.embed("x", dimensions=WIDTH)).json()["data"][0]["embedding"]) == WIDTH


# -- numbers ---------------------------------------------------------------------------------------

TEXTS = ["cat", "house " * 5, "a ship in a storm", "x" * 30, "rain", "zinc", "the quick brown fox " * 20, "1 2 3 4"]
PAIRS = (
    ("How do volcanoes form?", "Molten rock rises from the mantle and breaks through the crust of the Earth."),
    ("What do bees make?", "Worker insects collect nectar and turn it into honey in their hive."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci created the famous portrait in Florence."),
    ("How is bread baked?", "Dough of flour, water and yeast rises and then goes into a hot oven."),
    ("What is inflation?", "When prices of goods increase, money buys less than it did before."),
    ("Why do ships float?", "A hull pushes water aside, and buoyancy carries its weight at sea."),
)


def test_every_vector_has_length_1(real: Service) -> None:
    """EMQ-01"""
    vectors = real.vectors(["a", "The cat sat on the mat.", "word " * 400, *TEXTS])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(vectors)), abs=1e-3)


def test_neighbours_in_a_request_change_nothing(real: Service) -> None:
    """EMQ-02: one call, one by one, and the other way round."""
    together, back = real.vectors(TEXTS), real.vectors(TEXTS[::-1])[::-1]
    for index, text in enumerate(TEXTS):
        alone = real.vectors(text)[0]
        assert cosine(together[index], alone) > 0.999
        assert cosine(back[index], alone) > 0.999
    assert cosine(together[0], together[2]) < 0.99
    assert [item["index"] for item in real.embed(TEXTS).json()["data"]] == list(range(len(TEXTS)))


def test_question_is_nearest_to_its_own_passage(real: Service) -> None:
    """EMQ-04: the marks at both ends and the pooling are right."""
    questions, passages = (real.vectors(list(texts)) for texts in zip(*PAIRS, strict=True))
    likeness = questions @ passages.T
    assert likeness.argmax(axis=1).tolist() == list(range(len(PAIRS)))
    own = np.diag(likeness).mean()
    others = (likeness.sum() - np.diag(likeness).sum()) / (len(PAIRS) * (len(PAIRS) - 1))
    assert own - others > 0.15


def test_mark_written_by_hand_is_text(real: Service) -> None:
    """EMQ-04: the end mark is there already, once."""
    for text in ("The cat sat on the mat.", "rain"):
        plain = good(real.embed(text)).json()["usage"]["prompt_tokens"]
        assert good(real.embed(text + " [SEP]")).json()["usage"]["prompt_tokens"] > plain + 1


def test_parallel_short_texts_are_as_alone(real: Service) -> None:
    """EMQ-07"""
    letters = [chr(ord("a") + number) for number in range(26)]
    alone = real.vectors(letters)
    with ThreadPoolExecutor(13) as pool:
        together = list(pool.map(real.vectors, letters))
    assert all(vectors.shape == (1, WIDTH) for vectors in together)
    assert min(cosine(a, vectors[0]) for a, vectors in zip(alone, together, strict=True)) > 0.999
    assert cosine(alone[0], alone[1]) < 0.9999


def test_usage_is_the_sum_over_the_texts(real: Service) -> None:
    """EMQ-08"""
    single = [good(real.embed(text)).json()["usage"]["prompt_tokens"] for text in TEXTS]
    usage = good(real.embed(TEXTS)).json()["usage"]
    assert min(single) >= 3
    assert usage == {"prompt_tokens": sum(single), "total_tokens": sum(single)}


# -- long and many ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [WINDOW - 2, WINDOW - 1, WINDOW])
def test_text_up_to_the_window_is_embedded_whole(real: Service, n_tokens: int) -> None:
    """EMS-01: two of the tokens are marks."""
    response = good(real.embed("word " * (n_tokens - 2)))
    assert response.json()["usage"]["prompt_tokens"] == n_tokens
    assert "x-truncated-inputs" not in response.headers


@pytest.mark.parametrize("n_words", [WINDOW - 1, WINDOW, 2 * WINDOW, 20 * WINDOW])
def test_text_beyond_the_window_is_said_to_be_cut(real: Service, n_words: int) -> None:
    """EMS-01, EMS-03: as many tokens as fit, the marks among them."""
    response = good(real.embed("word " * n_words))
    assert response.json()["usage"]["prompt_tokens"] == WINDOW
    assert response.headers["x-truncated-inputs"] == "0"


def test_end_of_a_long_text_counts(real: Service) -> None:
    """EMS-02"""
    text = "word " * (WINDOW - 40)
    a, b = real.vectors([text + "The parcel was sent from Lisbon.", text + "Penguins cannot fly."])
    assert cosine(a, b) < 0.9999


def test_cut_texts_among_others_are_named_by_their_place(real: Service) -> None:
    """EMS-03: also beyond the first slice; and their neighbours are as alone."""
    texts = ["a", "b", "word " * 600, "d", "e", "f", "word " * 600, "h"]
    response = good(real.embed(texts))
    assert response.headers["x-truncated-inputs"] == "2,6"
    rows = np.array([item["embedding"] for item in response.json()["data"]])
    assert cosine(rows[4], real.vectors("e")[0]) > 0.999
    assert cosine(rows[2], rows[6]) > 0.999


def test_many_texts_come_back_in_order(fake: Service) -> None:
    """EMS-06: as many as are taken, each the row of its own text; beyond that the limit is named."""
    texts = [f"item {number}" for number in range(128)]
    rows = fake.vectors(texts)
    assert rows.shape == (128, WIDTH)
    for number in range(0, 128, 9):
        assert cosine(rows[number], fake.vectors(texts[number])[0]) > 0.999
    for n_texts in (129, 2048, 2049):
        error = error_of(fake.embed(["x"] * n_texts), 400)
        assert error["param"] == "input"
        assert "128" in error["message"]
        assert str(n_texts) in error["message"]


def test_text_that_fails_is_named_by_its_place(fake: Service) -> None:
    """EMS-03: beyond the first slice, too."""
    texts = ["a"] * 9 + ["FAKE-ERROR"] + ["b"] * 3
    error = error_of(fake.embed(texts), 500)
    assert error["param"] == "input[9]"
    assert "input[9]" in error["message"]
    fake.assert_alive()
