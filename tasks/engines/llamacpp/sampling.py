"""How the next token is chosen: llama.cpp's own sampler chain, made for one choice of a request."""

import ctypes
import random
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from tasks.contracts import Sampling
from tasks.engines.base import Float32Array, InvalidRequest
from tasks.engines.llamacpp.vocab import Vocab

RANDOM_SEED = 0xFFFFFFFF  #: LLAMA_DEFAULT_SEED: llama.cpp takes another one each time
MIROSTAT_CANDIDATES = 100  #: of version 1; llama.cpp's constant
BANNED = -100.0  #: a bias from which on a token is out of the question

Bias = tuple[int, float]  #: a token, and what is added to its logit

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class Sampler:
    """One choice's sampler chain. Only the decode thread uses it; `free` ends its life.

    The order is llama.cpp's default one (common/common.h, `samplers`): biases, penalties, dry, top_k, typical_p, top_p,
    min_p, xtc, temperature. Mirostat stands in for all between dry and temperature.
    """

    def __init__(
        self, sampling: Sampling, vocab: Vocab, n_ctx: int, prompt: Sequence[int] = (), biases: Sequence[Bias] = ()
    ) -> None:
        """`prompt`: the penalties look back into it, as llama-server's do. `biases`: see `token_biases`."""
        params = llama_cpp.llama_sampler_chain_default_params()
        params.no_perf = True
        self._chain: Any = llama_cpp.llama_sampler_chain_init(params)
        self._candidates: Any = None
        for sampler in _samplers(sampling, vocab, n_ctx, biases):
            llama_cpp.llama_sampler_chain_add(self._chain, sampler)  # the chain frees it
        looks_back = max(
            penalty_window(sampling, n_ctx) if has_penalties(sampling) else 0,
            dry_window(sampling, n_ctx) if has_dry(sampling) else 0,
        )
        for token in prompt[-looks_back:] if looks_back else ():
            llama_cpp.llama_sampler_accept(self._chain, token)

    def sample(self, context: Any, row: int) -> int:
        """The next token, from the logits of the batch's token number `row`."""
        token: int = llama_cpp.llama_sampler_sample(self._chain, context, row)
        return token

    def sample_among(self, tokens: "np.ndarray[Any, np.dtype[np.intp]]", logits: Float32Array) -> int:
        """One of these tokens, of which there is at least one.

        The others are left out, not made impossible: some of llama.cpp's samplers (typical, Mirostat 1) compute with
        the logarithm of every probability, and zero has none.
        """
        token = int(tokens[0]) if len(tokens) == 1 else self._apply(tokens, logits)
        llama_cpp.llama_sampler_accept(self._chain, token)
        return token

    def free(self) -> None:
        """Any number of times."""
        if self._chain is not None:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = None

    def _apply(self, tokens: "np.ndarray[Any, np.dtype[np.intp]]", logits: Float32Array) -> int:
        if self._candidates is None:
            self._candidates = np.empty(len(logits), _CANDIDATE)
        count = len(tokens)
        self._candidates["id"][:count] = tokens
        self._candidates["logit"][:count] = logits[tokens]
        array = llama_cpp.llama_token_data_array(
            data=ctypes.cast(self._candidates.ctypes.data, llama_cpp.llama_token_data_p),
            size=count,
            selected=-1,
            sorted=False,
        )
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id) if 0 <= array.selected < array.size else -1


def has_penalties(sampling: Sampling) -> bool:
    is_neutral = sampling.repeat_penalty == 1.0 and not sampling.frequency_penalty and not sampling.presence_penalty
    return not is_neutral and sampling.repeat_last_n != 0


def penalty_window(sampling: Sampling, n_ctx: int) -> int:
    """Tokens the penalties look back. llama.cpp's sampler takes -1 for none, its command line for the whole window."""
    return n_ctx if sampling.repeat_last_n < 0 else min(sampling.repeat_last_n, n_ctx)


def has_dry(sampling: Sampling) -> bool:
    return sampling.dry_multiplier != 0 and sampling.dry_base >= 1 and sampling.dry_penalty_last_n != 0


def dry_window(sampling: Sampling, n_ctx: int) -> int:
    return n_ctx if sampling.dry_penalty_last_n < 0 else min(sampling.dry_penalty_last_n, n_ctx)


def seed_of(sampling: Sampling) -> int:
    """32 bits. A given seed never becomes llama.cpp's word for a random one."""
    if sampling.seed is None:
        return random.SystemRandom().randrange(RANDOM_SEED)
    return sampling.seed % RANDOM_SEED


def token_biases(sampling: Sampling, vocab: Vocab) -> list[Bias]:
    """`logit_bias` by token; a text stands for each of its tokens. With `ignore_eos` no token ends the answer.

    Raises InvalidRequest: there is no such token.
    """
    biases: list[Bias] = []
    for token, bias in sampling.logit_bias:
        if isinstance(token, str):
            text = token.encode("utf-8", "replace").decode()
            biases += [(part, bias) for part in dict.fromkeys(vocab.tokenize(text))]
        elif 0 <= token < vocab.n_tokens:
            biases.append((token, bias))
        else:
            raise InvalidRequest(
                f"logit_bias names token {token}; this model's tokens are 0 to {vocab.n_tokens - 1}.", "logit_bias"
            )
    if sampling.ignore_eos:
        biases += [(token, -float("inf")) for token in vocab.eog]
    return biases


def _samplers(sampling: Sampling, vocab: Vocab, n_ctx: int, biases: Sequence[Bias]) -> list[Any]:
    samplers = []
    if biases:
        entries = (llama_cpp.llama_logit_bias * len(biases))(*(llama_cpp.llama_logit_bias(*bias) for bias in biases))
        samplers.append(llama_cpp.llama_sampler_init_logit_bias(vocab.n_tokens, len(biases), entries))
    if has_penalties(sampling):
        samplers.append(
            llama_cpp.llama_sampler_init_penalties(
                vocab.n_tokens,
                penalty_window(sampling, n_ctx),
                sampling.repeat_penalty,
                sampling.frequency_penalty,
                sampling.presence_penalty,
            )
        )
    if has_dry(sampling):
        samplers.append(_dry(sampling, vocab, n_ctx))
    if sampling.temperature <= 0:
        return [*samplers, llama_cpp.llama_sampler_init_greedy()]
    seed = seed_of(sampling)
    top_k = _top_k(sampling, vocab, biases)
    if top_k > 0:
        samplers.append(llama_cpp.llama_sampler_init_top_k(top_k))
    if sampling.mirostat:
        return [*samplers, llama_cpp.llama_sampler_init_temp(sampling.temperature), _mirostat(sampling, vocab, seed)]
    if sampling.typical_p < 1:
        samplers.append(llama_cpp.llama_sampler_init_typical(sampling.typical_p, 1))
    if sampling.top_p < 1:
        samplers.append(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p > 0:
        samplers.append(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
    if sampling.xtc_probability > 0:
        threshold = sampling.xtc_threshold
        samplers.append(llama_cpp.llama_sampler_init_xtc(sampling.xtc_probability, threshold, 1, seed))
    samplers.append(llama_cpp.llama_sampler_init_temp(sampling.temperature))
    samplers.append(llama_cpp.llama_sampler_init_dist(seed))
    return samplers


def _top_k(sampling: Sampling, vocab: Vocab, biases: Sequence[Bias]) -> int:
    """0: no limit. What biases make impossible is cut off for samplers that take the logarithm of its probability."""
    top_k = 0 if sampling.mirostat else sampling.top_k
    n_banned = len({token for token, bias in biases if bias <= BANNED})
    if n_banned and (sampling.typical_p < 1 or sampling.mirostat == 1):
        n_possible = max(vocab.n_tokens - n_banned, 1)
        return min(top_k, n_possible) if top_k > 0 else n_possible
    return min(top_k, vocab.n_tokens)


def _mirostat(sampling: Sampling, vocab: Vocab, seed: int) -> Any:
    tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
    if sampling.mirostat == 1:
        return llama_cpp.llama_sampler_init_mirostat(vocab.n_tokens, seed, tau, eta, MIROSTAT_CANDIDATES)
    return llama_cpp.llama_sampler_init_mirostat_v2(seed, tau, eta)


def _dry(sampling: Sampling, vocab: Vocab, n_ctx: int) -> Any:
    breakers = [text.encode("utf-8", "replace") for text in sampling.dry_sequence_breakers]
    return llama_cpp.llama_sampler_init_dry(
        vocab.handle,
        sampling.dry_multiplier,
        sampling.dry_base,
        sampling.dry_allowed_length,
        dry_window(sampling, n_ctx),
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )
