"""The logits of the last batch as numpy arrays, without a copy. Only the decode thread uses it."""

import ctypes
from typing import Any

import llama_cpp
import numpy as np

from tasks.engines.base import Float32Array


class Logits:
    def __init__(self, context: Any, n_vocab: int) -> None:
        self._context = context
        self._n_vocab = n_vocab
        self._views: dict[int, Float32Array] = {}  # by address: llama.cpp keeps its buffer, and making a view is slow

    def row(self, row: int) -> Float32Array:
        """The logits of the batch's token number `row`; valid until the next batch."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        address = ctypes.addressof(pointer.contents)
        view = self._views.get(address)
        if view is None:
            if len(self._views) > 256:  # the buffer was moved, again and again
                self._views.clear()
            view = np.ctypeslib.as_array((ctypes.c_float * self._n_vocab).from_address(address))
            self._views[address] = view
        return view
