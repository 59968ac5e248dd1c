"""A llama.cpp context that turns groups of token lists into pooled vectors. Every method runs on the device's thread.

Three kinds of model are decoded in three ways (facts from llama.cpp as in llama-cpp-python 0.3.36). One text's vector
must not depend on its neighbours, and quantised models magnify the last bit: sums in another order gave cosines down to
0.9975 between batched and single calls (SmolLM2-135M Q4_1). So each way keeps the order of every sum.

- STREAMED: a causal decoder with pooling `last` (Qwen3-Embedding). Each text has KV cells of its own. All but its last
  token is prefilled with embeddings switched off, and one short decode of the last tokens gives the vectors. For with
  embeddings on, every token is an output, and each output costs a row of `n_vocab` logits: computed, although nobody
  reads it, and kept. Measured on a decoder of width 32 with Qwen3's 151669 tokens, a text of 512 tokens, n_ubatch 128:
  all at once 74 MiB compute buffer, 296 MiB output buffer, 1.5 s; this way 2.3 MiB, 2.3 MiB, 0.01 s.
- ENCODER: no memory (BERT). All tokens of a call must fit into one micro-batch. Texts begin at multiples of 16 tokens,
  which is how many numbers a CPU adds at once. What cannot be helped: the output buffer holds `n_vocab` floats for each
  token of a call, which are never filled: 60 MiB for BERT's 30522 tokens and a window of 512.
- WHOLE: any other decoder. One text per call and in one micro-batch, because llama.cpp pools within a micro-batch and
  forgets the ones before.
"""

import logging
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from tasks.engines.base import DecodeFailed, Float32Array, ModelLoadError
from tasks.engines.llamacpp.embedding_model import POOLING_TYPES, EmbeddingModel
from tasks.settings import Settings

log = logging.getLogger(__name__)

ALIGNMENT = 16  #: float32 lanes of AVX-512; a multiple of narrower units' lanes
CELLS_PADDING = 256  #: llama.cpp rounds a sequence's cells up to this
MAX_SEQUENCES = 256  #: LLAMA_MAX_SEQ


class Kind(Enum):
    STREAMED = auto()
    ENCODER = auto()
    WHOLE = auto()


class Item(NamedTuple):
    """One token of a batch."""

    token: int
    position: int
    sequence: int


class GroupPlan(NamedTuple):
    """One group of texts as library calls, each a batch; the last one gives the vectors."""

    steps: list[list[Item]]
    n_texts: int


class EmbeddingContext:
    """One group at a time: `plan`, then `run` for each of its steps in order."""

    def __init__(self, model: EmbeddingModel, settings: Settings) -> None:
        """Raises ModelLoadError when llama.cpp cannot make the context."""
        self.width = model.width
        self.window = model.window(settings.embedding_n_ctx)  #: tokens per text
        self._kind = Kind.STREAMED if model.is_causal and settings.embedding_pooling == "last" else Kind.WHOLE
        self._context = self._open(model, settings)
        self._memory = llama_cpp.llama_get_memory(self._context)
        if self._memory is None:
            llama_cpp.llama_free(self._context)
            self._kind = Kind.ENCODER
            self._context = self._open(model, settings)
        if self._kind is not Kind.STREAMED and settings.embedding_n_ubatch < self.window:
            log.warning(
                "LIS_EMBEDDING_N_UBATCH raised to the window: the model needs a whole text in one micro-batch",
                extra={"embedding_n_ubatch": settings.embedding_n_ubatch, "window": self.window},
            )
        self._batch = llama_cpp.llama_batch_init(max(self._step_tokens, self.max_texts), 0, 1)

    def _open(self, model: EmbeddingModel, settings: Settings) -> Any:
        """A context for `self._kind`; sets the sizes that go with it."""
        params = llama_cpp.llama_context_default_params()
        n_ubatch = settings.embedding_n_ubatch
        if self._kind is Kind.STREAMED:
            self.max_texts = n_sequences = settings.embedding_batch_size
            self.max_tokens = n_sequences * self.window  #: of one group, as `cost` counts them
            self._step_tokens = n_ubatch
            # llama.cpp divides n_ctx by n_seq_max, and each text must get its whole window.
            params.n_ctx = n_sequences * round_up(self.window, CELLS_PADDING)
            params.n_outputs_max = n_sequences  # rows of logits to reserve
        elif self._kind is Kind.ENCODER:
            self.max_texts = min(settings.embedding_batch_size, MAX_SEQUENCES - 1)
            n_sequences = self.max_texts + 1  # one for what fills the gaps between texts
            self.max_tokens = self._step_tokens = round_up(max(self.window, n_ubatch), ALIGNMENT)
            # With mean pooling llama.cpp aborts when it reserves a micro-batch that n_seq_max does not divide.
            n_ubatch = params.n_ctx = round_up(self.max_tokens, n_sequences)
            # Its kernel for long sequences sums in blocks that depend on where a text begins.
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        else:
            self.max_texts = n_sequences = 1
            self.max_tokens = self._step_tokens = n_ubatch = params.n_ctx = self.window
        params.n_batch = max(n_ubatch, n_sequences)
        params.n_ubatch = n_ubatch
        params.n_seq_max = n_sequences
        params.embeddings = self._kind is not Kind.STREAMED
        params.pooling_type = POOLING_TYPES[settings.embedding_pooling]
        params.n_threads = params.n_threads_batch = settings.n_threads
        context = llama_cpp.llama_init_from_model(model.handle, params)
        if not context:
            raise ModelLoadError(
                f"not enough memory for the embedding model's context: lower LIS_EMBEDDING_N_CTX ({self.window}), "
                f"LIS_EMBEDDING_BATCH_SIZE ({settings.embedding_batch_size}) or LIS_EMBEDDING_N_UBATCH ({n_ubatch})"
            )
        return context

    def cost(self, n_tokens: int) -> int:
        """What a text of so many tokens takes of a group's `max_tokens`."""
        return round_up(n_tokens, ALIGNMENT) if self._kind is Kind.ENCODER else n_tokens

    def plan(self, texts: Sequence[Sequence[int]]) -> GroupPlan:
        """The library calls that a group of token lists needs."""
        items = [
            [Item(token, position, sequence) for position, token in enumerate(text)]
            for sequence, text in enumerate(texts)
        ]
        if self._kind is Kind.ENCODER:
            for text in items:
                filler = Item(text[0].token, 0, self.max_texts)
                text.extend([filler] * (self.cost(len(text)) - len(text)))
        if self._kind is not Kind.STREAMED:
            return GroupPlan([[item for text in items for item in text]], len(texts))
        heads = [item for text in items for item in text[:-1]]
        steps = [heads[begin : begin + self._step_tokens] for begin in range(0, len(heads), self._step_tokens)]
        return GroupPlan([*steps, [text[-1] for text in items]], len(texts))

    def run(self, plan: GroupPlan, number: int) -> Float32Array:
        """Make the plan's call `number`. The last one gives the vectors, not normalised. Raises DecodeFailed."""
        is_last = number == len(plan.steps) - 1
        if number == 0:
            self.forget()
        if self._kind is Kind.STREAMED:
            llama_cpp.llama_set_embeddings(self._context, is_last)
        call = llama_cpp.llama_encode if self._kind is Kind.ENCODER else llama_cpp.llama_decode
        if status := call(self._context, self._fill_batch(plan.steps[number], is_last)):
            raise DecodeFailed(f"the embedding model failed to decode (llama.cpp status {status})")
        rows = np.empty((plan.n_texts if is_last else 0, self.width), dtype=np.float32)
        for sequence in range(len(rows)):
            pointer = llama_cpp.llama_get_embeddings_seq(self._context, sequence)  # waits for the computation to end
            if not pointer:
                raise DecodeFailed("the embedding model gave no vector")
            rows[sequence] = np.ctypeslib.as_array(pointer, (self.width,))
        return rows

    def _fill_batch(self, step: Sequence[Item], is_output: bool) -> Any:
        batch = self._batch
        batch.n_tokens = len(step)
        for index, item in enumerate(step):
            batch.token[index] = item.token
            batch.pos[index] = item.position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = item.sequence
            batch.logits[index] = is_output
        return batch

    def forget(self, wipe: bool = False) -> None:
        """Free the cells of the group before. `wipe`: overwrite them too, after a failure.

        A value that is not a number stays in a free cell, and masking multiplies it by zero, which gives NaN again:
        without wiping, one bad text spoils those after it.
        """
        if self._memory is not None:
            llama_cpp.llama_memory_clear(self._memory, wipe)

    def free(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
