"""What every EmbeddingEngine keeps. A subclass gives the fixture `engine`, whose window must be at most 600 tokens."""

import numpy as np
import pytest

from tasks.engines.base import Cancelled, EmbeddingEngine, Float32Array

TEXTS = [
    "a",
    "The cat sat on the mat.",
    "word " * 60,
    "Grüße aus Köln",
    "水と火",
    "x = [i**2 for i in range(10)]",
    "🙂",
]
BLANK_TEXTS = ["é", "e\u0301", "\u200b", "\ufeff", "\U0001f469\u200d\U0001f467", "\U000e0001", " ", "\t\n", "\x00", ""]


def cosines(left: Float32Array, right: Float32Array) -> Float32Array:
    """Row by row."""
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    rows: Float32Array = np.sum(left * right, axis=1) / norms
    return rows


class EmbeddingEngineContract:
    def test_vectors_have_norm_1_and_the_announced_width(self, engine: EmbeddingEngine) -> None:
        result = engine.embed(TEXTS)
        assert result.vectors.shape == (len(TEXTS), engine.width)
        assert result.vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(result.vectors, axis=1), 1, atol=1e-5)

    def test_no_text_gives_no_vector(self, engine: EmbeddingEngine) -> None:
        result = engine.embed([])
        assert result.vectors.shape == (0, engine.width)
        assert result.prompt_tokens == 0

    def test_neighbours_and_order_do_not_change_a_vector(self, engine: EmbeddingEngine) -> None:
        together = engine.embed(TEXTS).vectors
        alone = np.concatenate([engine.embed([text]).vectors for text in TEXTS])
        reverse = engine.embed(TEXTS[::-1]).vectors[::-1]
        assert cosines(together, alone).min() > 0.9999
        assert cosines(together, reverse).min() > 0.9999

    def test_unlike_texts_have_unlike_vectors(self, engine: EmbeddingEngine) -> None:
        vectors = engine.embed(TEXTS).vectors
        likeness = vectors @ vectors.T - np.eye(len(TEXTS))
        assert likeness.max() < 0.9999

    def test_blank_and_invisible_texts_give_finite_vectors(self, engine: EmbeddingEngine) -> None:
        vectors = engine.embed(BLANK_TEXTS).vectors
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)

    def test_lone_surrogate_is_embedded(self, engine: EmbeddingEngine) -> None:
        assert np.isfinite(engine.embed(["a \ud800 b"]).vectors).all()

    def test_prompt_tokens_add_up(self, engine: EmbeddingEngine) -> None:
        together = engine.embed(["one two three", "four"])
        singly = [engine.embed([text]).prompt_tokens for text in ("one two three", "four")]
        assert together.prompt_tokens == sum(singly)
        assert list(together.tokens) == singly
        assert together.prompt_tokens >= 4

    def test_over_long_text_is_cut_and_named(self, engine: EmbeddingEngine) -> None:
        result = engine.embed(["short", "long " * 1000, "short again"])
        assert result.truncated == [1]
        assert engine.embed(["long " * 1000]).prompt_tokens == engine.n_ctx

    def test_what_lies_beyond_the_window_does_not_change_the_vector(self, engine: EmbeddingEngine) -> None:
        head = "long " * 1000
        vectors = engine.embed([head, head + "and a different end"]).vectors
        assert cosines(vectors[:1], vectors[1:]).min() > 0.9999

    def test_cancel_between_calls(self, engine: EmbeddingEngine) -> None:
        asked: list[bool] = []

        def is_cancelled() -> bool:
            asked.append(True)
            return len(asked) > 1

        with pytest.raises(Cancelled):
            engine.embed(["some text"] * 50, is_cancelled)
        assert np.isfinite(engine.embed(["and then"]).vectors).all()
