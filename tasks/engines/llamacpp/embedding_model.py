"""An embedding GGUF: loading it, and what it says about itself."""

import logging
from pathlib import Path

import llama_cpp

from tasks.engines.base import ModelLoadError
from tasks.engines.llamacpp.backend import load_model
from tasks.engines.llamacpp.embedding_text import Marks, marks_around
from tasks.engines.llamacpp.gguf_check import check_gguf
from tasks.engines.llamacpp.vocab import metadata, tokenize
from tasks.setting_types import Pooling

log = logging.getLogger(__name__)

POOLING_TYPES: dict[Pooling, int] = {
    "mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    "cls": llama_cpp.LLAMA_POOLING_TYPE_CLS,
    "last": llama_cpp.LLAMA_POOLING_TYPE_LAST,
}


class EmbeddingModel:
    """A loaded GGUF. Loading and `free` belong on the device's thread; the rest may be called from any."""

    def __init__(self, path: Path, n_gpu_layers: int) -> None:
        """Raises ModelLoadError: it cannot be loaded, or gives no vector per text."""
        check_gguf(path)
        self.handle = load_model(path, n_gpu_layers)
        self._vocab = llama_cpp.llama_model_get_vocab(self.handle)
        self.architecture = metadata(self.handle, "general.architecture") or ""
        if problem := self._unfit():
            self.free()
            raise ModelLoadError(f"'{path.name}' cannot be the embedding model: it {problem}")
        self.width: int = llama_cpp.llama_model_n_embd_out(self.handle)
        #: As far as the GGUF says. EmbeddingContext finds the encoders that say nothing.
        self.is_causal = metadata(self.handle, f"{self.architecture}.attention.causal") != "false"

    def free(self) -> None:
        llama_cpp.llama_model_free(self.handle)

    def tokenize(self, text: str, add_special: bool = False) -> list[int]:
        """Text only: the spelling of a control token in it is text, too."""
        return tokenize(self._vocab, text, add_special=add_special)

    def window(self, wanted: int) -> int:
        """Tokens per text: `wanted`, or what the model was trained on."""
        trained: int = llama_cpp.llama_model_n_ctx_train(self.handle)
        if wanted > trained:
            log.warning(
                "LIS_EMBEDDING_N_CTX lowered to the GGUF's n_ctx_train",
                extra={"embedding_n_ctx": wanted, "n_ctx_train": trained},
            )
        return min(wanted, trained)

    def marks(self, pooling: Pooling) -> Marks:
        """The control tokens around every text, as the model's own tokenizer puts them."""
        marks = marks_around(self.tokenize("a"), self.tokenize("a", add_special=True))
        eos: int = llama_cpp.llama_vocab_eos(self._vocab)
        is_silent = metadata(self.handle, "tokenizer.ggml.add_eos_token") is None
        if pooling == "last" and not marks.end and is_silent and eos >= 0:
            # The last token's state is the vector, and these models were trained with the end token there. Early
            # conversions of Qwen3-Embedding do not say so; without it the vectors are poor (ggml-org/llama.cpp#14234).
            log.warning("the embedding GGUF does not say whether its end token belongs after a text: it is added")
            return Marks(marks.start, (eos,))
        return marks

    def check_pooling(self, pooling: Pooling) -> None:
        """Warn when the GGUF declares another: nothing else would tell that the vectors are bad."""
        declared = self._declared_pooling()
        if declared not in (None, POOLING_TYPES[pooling]):
            names = {number: name for name, number in POOLING_TYPES.items()}
            log.warning(
                "LIS_EMBEDDING_POOLING is not what the GGUF declares: the vectors will be bad",
                extra={"embedding_pooling": pooling, "declared_pooling": names.get(declared or 0, str(declared))},
            )

    def _unfit(self) -> str | None:
        if llama_cpp.llama_model_has_encoder(self.handle) and llama_cpp.llama_model_has_decoder(self.handle):
            return "is an encoder-decoder, which has no vector for a text"
        if self._declared_pooling() == llama_cpp.LLAMA_POOLING_TYPE_RANK:
            return "is a reranker, which scores pairs of texts"
        return None

    def _declared_pooling(self) -> int | None:
        value = metadata(self.handle, f"{self.architecture}.pooling_type")
        return None if value is None else int(value)
