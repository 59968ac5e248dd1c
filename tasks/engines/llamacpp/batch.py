"""llama.cpp's batch, and one decode of a StepPlan. Only the decode thread uses it."""

import math
from collections.abc import Callable
from typing import Any

import llama_cpp

from tasks.engines.llamacpp.model import AbortFlag, ChatModel
from tasks.engines.llamacpp.slots import Part, Slot

Decode = Callable[[Any, Any], int]  #: llama_decode's signature: context, batch -> 0 or an error

ABORTED = 2  # llama_decode: AbortFlag was set


class Batch:
    """A buffer for `n_batch` tokens, filled anew for each step."""

    def __init__(self, model: ChatModel, decode: Decode = llama_cpp.llama_decode) -> None:
        """`decode`: llama.cpp's own. A test gives one that fails when it wants to see what happens then."""
        self._context = model.context
        self._memory = model.memory
        self._is_recurrent = model.is_recurrent
        self._decode = decode
        self._batch = llama_cpp.llama_batch_init(model.n_batch, 0, 1)
        for index in range(model.n_batch):
            self._batch.n_seq_id[index] = 1
        self.abort = AbortFlag(model.context)

    def run(self, parts: list[Part]) -> tuple[int, dict[int, int]]:
        """Decode. Gives llama.cpp's status (0: done) and, by slot index, the row whose logits are to be sampled."""
        token, pos, seq_id, logits = self._batch.token, self._batch.pos, self._batch.seq_id, self._batch.logits
        rows: dict[int, int] = {}
        n_tokens = 0
        for part in parts:
            sequence = part.slot.index
            for position, token_id in enumerate(part.tokens, part.start):
                token[n_tokens] = token_id
                pos[n_tokens] = position
                seq_id[n_tokens][0] = sequence
                logits[n_tokens] = 0
                n_tokens += 1
            if part.wants_logits:
                logits[n_tokens - 1] = 1
                rows[sequence] = n_tokens - 1
        self._batch.n_tokens = n_tokens
        return self._decode(self._context, self._batch), rows

    def has_numbers(self, row: int) -> bool:
        """False when the logits of this row are not numbers. One stands for all: every one sums over the same state."""
        return not math.isnan(llama_cpp.llama_get_logits_ith(self._context, row)[0])

    def keep(self, slot: Slot, n_kept: int) -> bool:
        """Forget the slot's tokens from position `n_kept` on. False: that failed, and all of them are forgotten.

        It fails for models whose state cannot go back, and where a sliding window has dropped what is needed.
        """
        memory, sequence = self._memory, slot.index
        if n_kept and llama_cpp.llama_memory_seq_rm(memory, sequence, n_kept, -1):
            last: int = llama_cpp.llama_memory_seq_pos_max(memory, sequence)
            first: int = llama_cpp.llama_memory_seq_pos_min(memory, sequence)
            if last == n_kept - 1 and (first == 0 or self._is_recurrent):
                return True
        llama_cpp.llama_memory_seq_rm(memory, sequence, -1, -1)
        return n_kept == 0

    def free(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
