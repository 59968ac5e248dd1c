"""The chat GGUF: loading it, its context, freeing both."""

import ctypes
import logging
from pathlib import Path
from typing import Any

import llama_cpp

from tasks.engines.base import ModelLoadError
from tasks.engines.llamacpp.backend import collected_errors, load_model
from tasks.engines.llamacpp.gguf_check import check_gguf
from tasks.engines.llamacpp.grammar_tokens import GrammarTokens
from tasks.engines.llamacpp.vocab import Vocab
from tasks.settings import Settings

log = logging.getLogger(__name__)

CACHE_TYPES = {"f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20}  # ggml_type
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type

#: ggml's CPU flash attention works on 64 query rows at a time where a micro-batch has as many, by arithmetic that
#: rounds differently (logits move by up to 0.8 on SmolLM2-135M). Below, every split of a prompt gives the same bits: so
#: an answer at temperature 0 is the same with and without kept tokens, alone and beside others. Without flash attention
#: it is so with every micro-batch, but for tokens decoded one by one (slots.py).
CPU_MAX_UBATCH_WITH_FLASH_ATTN = 63


class ChatModel:
    """A loaded model with one context of `n_slots` sequences. Decoding and `free` belong on the decode thread."""

    def __init__(self, settings: Settings) -> None:
        """Load `settings.gguf_path`. Raises ModelLoadError."""
        path = Path(settings.gguf_path)
        check_gguf(path)
        self._model = load_model(path, settings.n_gpu_layers)
        try:
            self.vocab = Vocab(self._model)
            self.grammar_tokens = GrammarTokens(self.vocab)
            self.n_ctx = self._window(settings.n_ctx)
            self.n_slots = settings.parallel
            self.n_batch = max(settings.n_batch, settings.parallel)
            self.n_ubatch = self._n_ubatch(settings)
            self.context: Any = self._make_context(settings)
            self.memory = llama_cpp.llama_get_memory(self.context)
            if not self.memory or llama_cpp.llama_model_has_encoder(self._model):
                llama_cpp.llama_free(self.context)
                raise ModelLoadError(f"'{path.name}' cannot be the chat model: it is an encoder")
        except BaseException:
            llama_cpp.llama_model_free(self._model)
            raise
        #: A state that cannot go back: it holds the whole past at its last position only.
        self.is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(self._model) or llama_cpp.llama_model_is_hybrid(self._model)
        )

    def chat_template(self) -> str | None:
        source: bytes | None = llama_cpp.llama_model_chat_template(self._model, None)
        return source.decode("utf-8", errors="replace") if source else None

    def free(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self._model)

    def _window(self, wanted: int) -> int:
        """Tokens of one request: `wanted`, or what the model was trained on."""
        trained: int = llama_cpp.llama_model_n_ctx_train(self._model)
        if 0 < trained < wanted:
            log.warning("LIS_N_CTX lowered to the GGUF's n_ctx_train", extra={"n_ctx": wanted, "n_ctx_train": trained})
            return trained
        return wanted

    def _make_context(self, settings: Settings) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx * self.n_slots
        params.n_seq_max = self.n_slots
        # Each sequence has cells of its own: a slot's window does not depend on its neighbours, and its attention does
        # not walk through their tokens.
        params.kv_unified = False
        params.n_batch = self.n_batch
        params.n_ubatch = self.n_ubatch
        # Only the tokens to sample after have logits. The default reserves n_vocab x n_ubatch x 4 bytes of them.
        params.n_outputs_max = self.n_slots
        params.n_threads = params.n_threads_batch = settings.n_threads
        params.flash_attn_type = FLASH_ATTN[self._flash_attn(settings)]
        params.type_k = CACHE_TYPES[settings.cache_type_k]
        params.type_v = CACHE_TYPES[settings.cache_type_v]
        params.no_perf = True
        with collected_errors() as errors:
            context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            reason = errors[-1].split(": ", 1)[-1] if errors else "no reason given"
            raise ModelLoadError(
                f"llama.cpp cannot make a context of {self.n_slots} x {self.n_ctx} tokens ({reason}): "
                f"lower LIS_N_CTX, LIS_PARALLEL or LIS_N_UBATCH, or use another LIS_CACHE_TYPE_K / LIS_CACHE_TYPE_V"
            )
        assert llama_cpp.llama_n_ctx_seq(context) >= self.n_ctx
        return context

    def _flash_attn(self, settings: Settings) -> str:
        """`auto` on a CPU: only where a quantized V cache needs it. There it decodes slower (39 tok/s, without 60)."""
        if settings.flash_attn != "auto" or _is_on_gpu(settings):
            return settings.flash_attn
        return "off" if settings.cache_type_v in ("f16", "bf16") else "on"

    def _n_ubatch(self, settings: Settings) -> int:
        wanted = min(settings.n_ubatch, self.n_batch)
        if _is_on_gpu(settings) or self._flash_attn(settings) == "off":
            return wanted
        return min(wanted, CPU_MAX_UBATCH_WITH_FLASH_ATTN)


def _is_on_gpu(settings: Settings) -> bool:
    return settings.n_gpu_layers != 0 and bool(llama_cpp.llama_supports_gpu_offload())


class AbortFlag:
    """Makes llama.cpp leave a running `llama_decode` between two operations of its graph; CPU only.

    llama.cpp asks a callback some thousand times in each step. A Python one would take the interpreter's lock each
    time; here it is libc's `strlen` on a buffer of ours, which answers by whether its first byte is zero.
    """

    def __init__(self, context: Any) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        address = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value or 0
        self._callback = llama_cpp.ggml_abort_callback(address)
        llama_cpp.llama_set_abort_callback(context, self._callback, ctypes.cast(self._buffer, ctypes.c_void_p))

    def set(self, wanted: bool) -> None:
        """From any thread."""
        self._buffer[0] = b"\x01" if wanted else b"\x00"
