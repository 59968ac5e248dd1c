"""The embedding engine on llama.cpp: the real MiniLM, and tiny decoders of Qwen3-Embedding's shape."""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import llama_cpp
import numpy as np
import pytest
from gguf import PoolingType

from tasks.engines.base import Cancelled, DecodeFailed, EmbeddingEngine, EngineError, ModelLoadError
from tasks.engines.llamacpp.embedder import LlamaEmbedder, run_here
from tasks.settings import Settings, load_settings
from tests.embedding_contract import TEXTS, EmbeddingEngineContract, cosines
from tests.support_models import minilm_path, smollm2_path, tiny_qwen3_path
from tests.tiny_gguf import POISON, TinyQwen3

T = TypeVar("T")
EOS = 0  #: of the tiny decoders


def minilm_settings(**overrides: Any) -> Settings:
    fields = {"embedding_gguf_path": str(minilm_path()), "embedding_pooling": "mean", "embedding_n_ubatch": 512}
    return load_settings(**{"n_threads": 1, **fields, **overrides})


def qwen3_settings(model: TinyQwen3 | None = None, **overrides: Any) -> Settings:
    fields = {"embedding_gguf_path": str(tiny_qwen3_path(model)), "embedding_n_ubatch": 128, "n_threads": 1}
    return load_settings(**{**fields, **overrides})


@pytest.fixture(scope="module")
def minilm() -> Iterator[LlamaEmbedder]:
    embedder = LlamaEmbedder.load(minilm_settings())
    yield embedder
    embedder.close()


@pytest.fixture(scope="module")
def tiny_qwen3() -> Iterator[LlamaEmbedder]:
    embedder = LlamaEmbedder.load(qwen3_settings())
    yield embedder
    embedder.close()


@pytest.fixture
def load() -> Iterator[Callable[..., LlamaEmbedder]]:
    """`LlamaEmbedder.load`, and what it loads is closed at the end."""
    loaded: list[LlamaEmbedder] = []

    def load_and_remember(*args: Any) -> LlamaEmbedder:
        loaded.append(LlamaEmbedder.load(*args))
        return loaded[-1]

    yield load_and_remember
    for embedder in loaded:
        embedder.close()


class TestMiniLM(EmbeddingEngineContract):
    @pytest.fixture
    def engine(self, minilm: LlamaEmbedder) -> EmbeddingEngine:
        return minilm


class TestTinyQwen3(EmbeddingEngineContract):
    @pytest.fixture
    def engine(self, tiny_qwen3: LlamaEmbedder) -> EmbeddingEngine:
        return tiny_qwen3


class Calls:
    """Counts what the embedder runs on the device, and checks that one thread does all of it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "device")
        self.n_calls = 0

    def __call__(self, function: Callable[[], T], /) -> T:
        self.n_calls += 1
        return self._executor.submit(function).result()


# -- quality ---------------------------------------------------------------------------------------


def test_minilm_gives_the_likeness_its_publisher_gets(minilm: LlamaEmbedder) -> None:
    food, bread = minilm.embed(["A man is eating food.", "A man is eating a piece of bread."]).vectors
    assert float(food @ bread) == pytest.approx(0.755, abs=0.01)


def test_minilm_finds_cat_nearer_to_dog_than_to_car_engine(minilm: LlamaEmbedder) -> None:
    cat, dog, engine = minilm.embed(["cat", "dog", "car engine"]).vectors
    assert float(cat @ dog) > float(cat @ engine)


def test_wordpiece_lowers_case_and_strips_accents(minilm: LlamaEmbedder) -> None:
    vectors = minilm.embed(["Café Crème", "cafe creme"]).vectors
    assert cosines(vectors[:1], vectors[1:]).min() > 0.9999


def test_spelled_control_tokens_stay_text(minilm: LlamaEmbedder) -> None:
    spelled = minilm.embed(["one [SEP] two"])
    assert spelled.prompt_tokens == minilm.embed(["one ( sep ) two"]).prompt_tokens


def test_twenty_texts_of_mixed_length_equal_their_single_calls(minilm: LlamaEmbedder) -> None:
    texts = [f"Text {index}: " + "some words and more of them " * index for index in range(20)]
    together = minilm.embed(texts).vectors
    alone = np.concatenate([minilm.embed([text]).vectors for text in texts])
    assert cosines(together, alone).min() > 0.9999


def test_quantised_decoder_gives_the_same_in_a_batch(load: Callable[..., LlamaEmbedder]) -> None:
    """With one pool of cells for all texts the worst of these cosines is below 0.998."""
    settings = load_settings(embedding_gguf_path=str(smollm2_path()), embedding_n_ctx=64, n_threads=1)
    embedder = load(settings)
    texts = [f"The {index}th of " + "many words " * (index % 5) for index in range(12)]
    alone = np.concatenate([embedder.embed([text]).vectors for text in texts])
    assert cosines(embedder.embed(texts).vectors, alone).min() > 0.9999


def test_parallel_callers_get_their_own_vectors(minilm: LlamaEmbedder) -> None:
    texts = [chr(ord("a") + index) for index in range(20)]
    serial = np.concatenate([minilm.embed([text]).vectors for text in texts])
    with ThreadPoolExecutor(10) as executor:
        parallel = np.concatenate([result.vectors for result in executor.map(lambda text: minilm.embed([text]), texts)])
    assert cosines(parallel, serial).min() > 0.9999


def test_prefix_goes_before_every_text(load: Callable[..., LlamaEmbedder], minilm: LlamaEmbedder) -> None:
    prefixed = load(minilm_settings(embedding_input_prefix="query: ")).embed(["cats", "dogs"]).vectors
    by_hand = minilm.embed(["query: cats", "query: dogs"]).vectors
    assert cosines(prefixed, by_hand).min() > 0.9999


# -- the window ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_words", [509, 510, 511, 512, 1000])
def test_texts_around_the_window_are_embedded(minilm: LlamaEmbedder, n_words: int) -> None:
    result = minilm.embed(["word " * n_words])
    assert result.prompt_tokens == min(n_words + 2, 512)  # CLS and SEP
    assert result.truncated == ([0] if n_words > 510 else [])


def test_text_after_the_first_micro_batch_counts(load: Callable[..., LlamaEmbedder]) -> None:
    embedder = load(qwen3_settings(embedding_n_ctx=1024))
    head = "word " * 120  # 600 tokens of this tokenizer
    vectors = embedder.embed([head + "The parcel was sent.", head + "Penguins cannot fly."]).vectors
    assert cosines(vectors[:1], vectors[1:]).max() < 0.99999


def test_window_is_lowered_to_n_ctx_train_and_logged(
    load: Callable[..., LlamaEmbedder], caplog: pytest.LogCaptureFixture
) -> None:
    embedder = load(minilm_settings(embedding_n_ctx=4096, embedding_n_ubatch=4096))
    assert embedder.n_ctx == 512
    assert "LIS_EMBEDDING_N_CTX lowered" in caplog.text
    assert embedder.embed(["word " * 5000]).prompt_tokens == 512


def test_encoder_raises_too_small_n_ubatch_and_says_so(
    load: Callable[..., LlamaEmbedder], caplog: pytest.LogCaptureFixture, minilm: LlamaEmbedder
) -> None:
    embedder = load(minilm_settings(embedding_n_ubatch=128))
    assert "LIS_EMBEDDING_N_UBATCH raised" in caplog.text
    text = ["word and other words " * 200]
    assert cosines(embedder.embed(text).vectors, minilm.embed(text).vectors).min() > 0.9999


@pytest.mark.parametrize("batch_size", [1, 3, 7, 256])
def test_encoder_takes_any_batch_size(
    load: Callable[..., LlamaEmbedder], batch_size: int, minilm: LlamaEmbedder
) -> None:
    """llama.cpp aborts the process when n_seq_max does not divide the micro-batch (mean pooling)."""
    embedder = load(minilm_settings(embedding_batch_size=batch_size))
    assert cosines(embedder.embed(TEXTS).vectors, minilm.embed(TEXTS).vectors).min() > 0.9999


@pytest.mark.parametrize("batch_size", [1, 3, 64, 256])
def test_batch_size_changes_neither_window_nor_vectors(load: Callable[..., LlamaEmbedder], batch_size: int) -> None:
    embedder = load(qwen3_settings(embedding_batch_size=batch_size))
    assert embedder.embed(["long " * 1000]).prompt_tokens == embedder.n_ctx == 512
    expected = load(qwen3_settings()).embed(TEXTS * 3).vectors
    assert cosines(embedder.embed(TEXTS * 3).vectors, expected).min() > 0.9999


# -- the end token ---------------------------------------------------------------------------------


def decoded_texts(embedder: LlamaEmbedder, monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> list[list[int]]:
    """The token lists that reach the context."""
    seen: list[list[int]] = []
    plan = embedder._context.plan

    def spy(token_lists: Any) -> Any:
        seen.extend(list(tokens) for tokens in token_lists)
        return plan(token_lists)

    monkeypatch.setattr(embedder._context, "plan", spy)
    embedder.embed(texts)
    return seen


@pytest.mark.parametrize("add_eos", [True, None])
def test_end_token_is_last_exactly_once_even_when_cut(
    load: Callable[..., LlamaEmbedder], monkeypatch: pytest.MonkeyPatch, add_eos: bool | None
) -> None:
    embedder = load(qwen3_settings(TinyQwen3(add_eos=add_eos)))
    for tokens in decoded_texts(embedder, monkeypatch, ["short", "", "long " * 500, "<|endoftext|> spelled"]):
        assert tokens[-1] == EOS
        assert tokens.count(EOS) == 1


def test_gguf_that_wants_no_end_token_gets_none(
    load: Callable[..., LlamaEmbedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = load(qwen3_settings(TinyQwen3(add_eos=False)))
    assert all(EOS not in tokens for tokens in decoded_texts(embedder, monkeypatch, ["short", "long " * 500]))


def test_tokens_are_those_of_the_models_own_tokenizer(minilm: LlamaEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*TEXTS, "", "  two  blanks  ", "[CLS] spelled"]
    own = [minilm._model.tokenize(text, add_special=True) for text in texts]
    assert decoded_texts(minilm, monkeypatch, texts) == own


def test_last_pooling_takes_the_end_tokens_state(load: Callable[..., LlamaEmbedder]) -> None:
    """In one micro-batch, in several, and as llama.cpp itself does it all at once."""
    texts = ["x" * length for length in (1, 100, 127, 128, 129, 300)]
    small, large = load(qwen3_settings()), load(qwen3_settings(embedding_n_ubatch=512))
    expected = np.stack([reference_last_state(small, text) for text in texts])
    assert cosines(small.embed(texts).vectors, expected).min() > 0.9999
    assert cosines(large.embed(texts).vectors, expected).min() > 0.9999


def reference_last_state(embedder: LlamaEmbedder, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One text in a context of its own, unpooled: the last token's hidden state."""
    tokens = embedder._model.tokenize(text, add_special=True)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.embeddings = True
    params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    context = llama_cpp.llama_init_from_model(embedder._model.handle, params)
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0
    pointer = llama_cpp.llama_get_embeddings_ith(context, -1)
    state = np.ctypeslib.as_array(pointer, (embedder.width,)).copy()
    llama_cpp.llama_free(context)
    return state


# -- pooling ---------------------------------------------------------------------------------------


def test_other_pooling_than_declared_is_logged(
    load: Callable[..., LlamaEmbedder], caplog: pytest.LogCaptureFixture
) -> None:
    embedder = load(minilm_settings(embedding_pooling="cls"))
    assert "LIS_EMBEDDING_POOLING is not what the GGUF declares" in caplog.text
    assert np.isfinite(embedder.embed(TEXTS).vectors).all()


def test_declared_pooling_is_not_logged(load: Callable[..., LlamaEmbedder], caplog: pytest.LogCaptureFixture) -> None:
    load(minilm_settings())
    assert caplog.records == [] or "POOLING" not in caplog.text


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_decoder_pools_over_the_whole_text(load: Callable[..., LlamaEmbedder], pooling: str) -> None:
    """llama.cpp pools within a micro-batch, so that a small one would give the last piece's vector."""
    model = TinyQwen3(pooling=None)
    small = load(qwen3_settings(model, embedding_pooling=pooling))
    large = load(qwen3_settings(model, embedding_pooling=pooling, embedding_n_ubatch=512))
    texts = ["a" * 50 + "b" * 300, "short"]
    assert cosines(small.embed(texts).vectors, large.embed(texts).vectors).min() > 0.9999


def test_decoder_without_causal_attention_works_with_a_small_n_ubatch(load: Callable[..., LlamaEmbedder]) -> None:
    embedder = load(qwen3_settings(TinyQwen3(causal=False)))
    assert np.isfinite(embedder.embed(["long " * 200, *TEXTS]).vectors).all()


def test_reranker_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="reranker"):
        LlamaEmbedder.load(qwen3_settings(TinyQwen3(pooling=PoolingType.RANK)))


def test_chat_model_can_embed_too(load: Callable[..., LlamaEmbedder]) -> None:
    """Nothing in its GGUF forbids it; it has no end token to add, and says nothing about pooling."""
    embedder = load(load_settings(embedding_gguf_path=str(smollm2_path()), embedding_n_ctx=64, n_threads=1))
    assert embedder.embed(["hello"]).vectors.shape == (1, 576)


# -- failures --------------------------------------------------------------------------------------


def test_not_a_number_fails_that_text_by_name_and_no_other(load: Callable[..., LlamaEmbedder]) -> None:
    embedder = load(qwen3_settings(TinyQwen3(poisoned=True)))
    before = embedder.embed(TEXTS).vectors
    with pytest.raises(DecodeFailed) as caught:
        embedder.embed([*TEXTS[:5], f"bad {POISON} text", *TEXTS[5:]])
    assert caught.value.param == "input[5]"
    assert "input[5]" in caught.value.message
    assert cosines(embedder.embed(TEXTS).vectors, before).min() > 0.9999


def test_failed_decode_is_reported_and_the_next_call_is_right(load: Callable[..., LlamaEmbedder]) -> None:
    embedder = load(qwen3_settings())
    before = embedder.embed(TEXTS).vectors
    abort = llama_cpp.ggml_abort_callback(lambda _: True)
    llama_cpp.llama_set_abort_callback(embedder._context._context, abort, ctypes.c_void_p())
    with pytest.raises(DecodeFailed) as caught:
        embedder.embed(TEXTS)
    assert caught.value.param == "input[0]"
    never = llama_cpp.ggml_abort_callback(lambda _: False)
    llama_cpp.llama_set_abort_callback(embedder._context._context, never, ctypes.c_void_p())
    assert cosines(embedder.embed(TEXTS).vectors, before).min() > 0.9999


def test_missing_file_is_one_clear_line(tmp_path: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"no-such\.gguf"):
        LlamaEmbedder.load(load_settings(embedding_gguf_path=str(tmp_path / "no-such.gguf")), run_here)


def test_embed_after_close_fails_and_close_may_be_repeated() -> None:
    embedder = LlamaEmbedder.load(qwen3_settings())
    embedder.close()
    embedder.close()
    with pytest.raises(EngineError, match="shutting down"):
        embedder.embed(["too late"])


def test_close_ends_a_running_call_and_waits_for_it() -> None:
    embedder = LlamaEmbedder.load(qwen3_settings())
    has_begun = threading.Event()

    def is_cancelled() -> bool:
        has_begun.set()
        return False

    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(embedder.embed, ["x" * 500] * 5000, is_cancelled)
        assert has_begun.wait(60)
        embedder.close()
        with pytest.raises(Cancelled):
            running.result(0)


# -- the device's thread ---------------------------------------------------------------------------


def test_every_call_goes_through_the_device_one_micro_batch_at_a_time(load: Callable[..., LlamaEmbedder]) -> None:
    device = Calls()
    embedder = load(qwen3_settings(), device)
    before = device.n_calls
    embedder.embed(["x" * 500])  # 500 tokens in four micro-batches of 128, then the end token
    assert device.n_calls - before == 5
    before = device.n_calls
    embedder.embed(["one", "two", "three", "four"])  # together: the heads, then the end tokens
    assert device.n_calls - before == 2


def test_device_is_free_between_the_calls_of_a_long_embedding(load: Callable[..., LlamaEmbedder]) -> None:
    device = Calls()
    embedder = load(qwen3_settings(), device)
    in_between = threading.Event()
    asked: list[bool] = []

    def is_cancelled() -> bool:
        asked.append(device(lambda: threading.current_thread().name.startswith("device")))
        in_between.set()
        return False

    embedder.embed(["x" * 500, "y" * 500], is_cancelled)
    assert in_between.is_set()
    assert all(asked)
    assert len(asked) == 9


def test_large_vocabulary_reserves_no_logits_for_every_token(
    load: Callable[..., LlamaEmbedder], caplog: pytest.LogCaptureFixture
) -> None:
    """llama.cpp logs its buffers. All outputs would take 74 MiB of compute buffer and 296 MiB of output buffer here."""
    with caplog.at_level(logging.DEBUG):
        embedder = load(qwen3_settings(TinyQwen3(n_vocab=151_669)))
        embedder.embed(["x" * 500])
    buffers = [line for line in caplog.messages if "compute buffer size =" in line or "output buffer size =" in line]
    assert len(buffers) >= 2
    assert sum(float(line.split("buffer size =")[1].split("MiB")[0]) for line in buffers) < 10
