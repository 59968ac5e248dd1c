"""The embedding engine on llama.cpp's low-level API: tokenize, cut, batch, pool, normalise."""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from tasks.engines.base import Cancelled, DecodeFailed, EmbeddingResult, Float32Array, InvalidRequest, ModelLoadError
from tasks.engines.llamacpp.embedding_context import EmbeddingContext
from tasks.engines.llamacpp.embedding_model import EmbeddingModel
from tasks.engines.llamacpp.embedding_text import TokenizedText, fit_to_window, group_texts
from tasks.engines.llamacpp.gate import Gate
from tasks.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")


class RunOnDevice(Protocol):
    """Run a function on the thread that owns the device, wait for it, give its result or raise its exception."""

    def __call__(self, function: Callable[[], T], /) -> T: ...


def run_here(function: Callable[[], T], /) -> T:
    """For when the caller's thread is the only one that touches the device."""
    return function()


class LlamaEmbedder:
    """One loaded embedding model. `embed` may be called from any thread; one group of texts is decoded at a time."""

    def __init__(
        self, model: EmbeddingModel, context: EmbeddingContext, settings: Settings, run_on_device: RunOnDevice
    ) -> None:
        """Takes over the model and its context. Use `load`."""
        self._model = model
        self._context = context
        self._run_on_device = run_on_device
        self._prefix = settings.embedding_input_prefix
        self._marks = model.marks(settings.embedding_pooling)
        self._group_lock = threading.Lock()
        self._gate = Gate()  # callers' threads tokenize with what `close` frees
        self._is_closing = False
        self.n_ctx = context.window
        self.width = model.width

    @classmethod
    def load(cls, settings: Settings, run_on_device: RunOnDevice = run_here) -> "LlamaEmbedder":
        """Load `settings.embedding_gguf_path` and decode one text of full length, so that missing memory shows now.

        Each llama.cpp call that loads or computes is one call of `run_on_device`. Raises ModelLoadError.
        """
        path = Path(settings.embedding_gguf_path)
        model = run_on_device(lambda: EmbeddingModel(path, settings.embedding_n_gpu_layers))
        model.check_pooling(settings.embedding_pooling)
        try:
            context = run_on_device(lambda: EmbeddingContext(model, settings))
        except ModelLoadError:
            run_on_device(model.free)
            raise
        embedder = cls(model, context, settings, run_on_device)
        try:
            embedder.embed(["warm up " * embedder.n_ctx])
        except DecodeFailed as exc:
            embedder.close()
            raise ModelLoadError(f"the embedding model does not work: {exc.message}") from exc
        return embedder

    def embed(self, texts: Sequence[str], is_cancelled: Callable[[], bool] = lambda: False) -> EmbeddingResult:
        """See EmbeddingEngine. LIS_EMBEDDING_INPUT_PREFIX is put before each text."""
        with self._gate.use():
            tokenized = [self._tokenize(index, text) for index, text in enumerate(texts)]
            vectors = np.empty((len(texts), self.width), dtype=np.float32)
            lengths = [len(text.tokens) for text in tokenized]
            costs = [self._context.cost(length) for length in lengths]
            for group in group_texts(costs, self._context.max_texts, self._context.max_tokens):
                with self._group_lock:
                    vectors[group.start : group.stop] = self._embed_group(group, tokenized, is_cancelled)
        truncated = [index for index, text in enumerate(tokenized) if text.truncated]
        return EmbeddingResult(vectors, sum(lengths), truncated, lengths)

    def close(self) -> None:
        """Free the model. Calls of `embed` that run end with Cancelled, after the library call they are in."""
        if not self._is_closing:
            self._is_closing = True
            self._gate.close()
            self._run_on_device(self._context.free)
            self._run_on_device(self._model.free)

    def _tokenize(self, index: int, text: str) -> TokenizedText:
        tokenized = fit_to_window(self._model.tokenize, self._prefix + text, self.n_ctx, self._marks)
        if not tokenized.tokens:
            raise InvalidRequest(f"input[{index}] has no tokens for this model", param=f"input[{index}]")
        return tokenized

    def _embed_group(
        self, group: range, texts: Sequence[TokenizedText], is_cancelled: Callable[[], bool]
    ) -> Float32Array:
        """Unit vectors of one group. When it fails, each text goes alone, to find the one to blame."""
        try:
            return self._decode([texts[index].tokens for index in group], is_cancelled)
        except DecodeFailed as exc:
            if len(group) > 1:
                singles = [range(index, index + 1) for index in group]
                return np.concatenate([self._embed_group(single, texts, is_cancelled) for single in singles])
            name = f"input[{group.start}]"
            log.error("embedding failed", extra={"input_index": group.start, "reason": exc.message})
            raise DecodeFailed(f"{name}: {exc.message}", param=name) from exc

    def _decode(self, texts: Sequence[Sequence[int]], is_cancelled: Callable[[], bool]) -> Float32Array:
        context = self._context
        plan = context.plan(texts)
        rows = np.empty((0, self.width), dtype=np.float32)
        try:
            for number in range(len(plan.steps)):
                if self._is_closing or is_cancelled():
                    raise Cancelled
                rows = self._run_on_device(partial(context.run, plan, number))
            return unit_vectors(rows)
        except DecodeFailed:
            self._run_on_device(partial(context.forget, wipe=True))
            raise


def unit_vectors(rows: Float32Array) -> Float32Array:
    """Rows of norm 1. Raises DecodeFailed when one has none: NaN, infinity or all zeros."""
    norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    if not np.all(np.isfinite(norms) & (norms > 0)):
        raise DecodeFailed("the embedding model gave no vector for it (not a number, infinite, or all zeros)")
    unit: Float32Array = (rows / norms).astype(np.float32)
    return unit
