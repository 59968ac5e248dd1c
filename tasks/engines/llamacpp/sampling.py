"""How the next token is chosen: llama.cpp's own sampler chain, made for one request."""

import random
from collections.abc import Sequence
from typing import Any

import llama_cpp

from tasks.contracts import Sampling

RANDOM_SEED = 0xFFFFFFFF  #: LLAMA_DEFAULT_SEED: llama.cpp takes another one each time


class Sampler:
    """One request's sampler chain. Only the decode thread uses it; `free` ends its life.

    The order is llama.cpp's default one (common/common.h, `samplers`): penalties, top_k, top_p, min_p, temperature.
    What restricts the choice of tokens (a grammar, biases) belongs before the penalties.
    """

    def __init__(self, sampling: Sampling, n_vocab: int, n_ctx: int, prompt: Sequence[int] = ()) -> None:
        """`prompt`: the penalties look back into it, as llama-server's do."""
        params = llama_cpp.llama_sampler_chain_default_params()
        params.no_perf = True
        self._chain: Any = llama_cpp.llama_sampler_chain_init(params)
        for sampler in _samplers(sampling, n_vocab, n_ctx):
            llama_cpp.llama_sampler_chain_add(self._chain, sampler)  # the chain frees it
        if has_penalties(sampling):
            for token in prompt[-penalty_window(sampling, n_ctx) :]:
                llama_cpp.llama_sampler_accept(self._chain, token)

    def sample(self, context: Any, row: int) -> int:
        """The next token, from the logits of the batch's token number `row`."""
        token: int = llama_cpp.llama_sampler_sample(self._chain, context, row)
        return token

    def free(self) -> None:
        """Any number of times."""
        if self._chain is not None:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = None


def has_penalties(sampling: Sampling) -> bool:
    is_neutral = sampling.repeat_penalty == 1.0 and not sampling.frequency_penalty and not sampling.presence_penalty
    return not is_neutral and sampling.repeat_last_n != 0


def penalty_window(sampling: Sampling, n_ctx: int) -> int:
    """Tokens the penalties look back. llama.cpp's sampler takes -1 for none, its command line for the whole window."""
    return n_ctx if sampling.repeat_last_n < 0 else min(sampling.repeat_last_n, n_ctx)


def seed_of(sampling: Sampling) -> int:
    """32 bits. A given seed never becomes llama.cpp's word for a random one."""
    if sampling.seed is None:
        return random.SystemRandom().randrange(RANDOM_SEED)
    return sampling.seed % RANDOM_SEED


def _samplers(sampling: Sampling, n_vocab: int, n_ctx: int) -> list[Any]:
    samplers = []
    if has_penalties(sampling):
        samplers.append(
            llama_cpp.llama_sampler_init_penalties(
                n_vocab,
                penalty_window(sampling, n_ctx),
                sampling.repeat_penalty,
                sampling.frequency_penalty,
                sampling.presence_penalty,
            )
        )
    if sampling.temperature <= 0:
        return [*samplers, llama_cpp.llama_sampler_init_greedy()]
    if sampling.top_k > 0:
        samplers.append(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1:
        samplers.append(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p > 0:
        samplers.append(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
    samplers.append(llama_cpp.llama_sampler_init_temp(sampling.temperature))
    samplers.append(llama_cpp.llama_sampler_init_dist(seed_of(sampling)))
    return samplers
