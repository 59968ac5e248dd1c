"""Tiny models with random weights, for tests that need llama.cpp's real code and no sense in the answer.

Every file is a function of its seed and shape only.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, PoolingType, TokenType

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WORDS = ("the", "and", "you", "that", "is", "cat", "dog", "user", "system", "assistant", "hello", "world", "one", "two")
POISON = "\x07"  #: TinyQwen3(poisoned=True): this character's embedding is not a number


FILL_IN_MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")  #: llama.cpp knows them by these names
THINK_MARKS = ("<think>", "</think>")


def write_tiny_llama(path: Path, chat_template: str | None = CHATML_TEMPLATE, with_marks: bool = False) -> None:
    """Arch llama, 1024 positions, SentencePiece-like vocabulary: all bytes, ASCII, some words, ChatML marks.

    `with_marks`: control tokens for filling in the middle, too, and user-defined ones for reasoning.
    """
    writer = GGUFWriter(path, "llama")
    tokens, types = _sentencepiece_vocabulary()
    if with_marks:
        tokens += [*FILL_IN_MARKS, *THINK_MARKS]
        types += [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED] * 2
    _add_shape(writer, n_ctx_train=1024, width=64, n_ff=128, n_layers=2, n_head=4, n_head_kv=2)
    writer.add_name("tiny llama with random weights")
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(len(tokens))])  # the best score is merged first
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    rng = np.random.default_rng(1)
    _add_weights(writer, rng, len(tokens), width=64, n_ff=128, n_layers=2, kv_width=32)
    # Own output rows of this size give logits of deviation 1.5: varied text in which an end token is rare.
    writer.add_tensor("output.weight", rng.standard_normal((len(tokens), 64), dtype=np.float32) * np.float32(1.5 / 8))
    _write(writer)


def _sentencepiece_vocabulary() -> tuple[list[str], list[TokenType]]:
    control = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    control |= {"<|im_start|>": TokenType.CONTROL, "<|im_end|>": TokenType.CONTROL}
    special = list(control)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    # Merging goes pair by pair, so each beginning of a word must be a token too.
    beginnings = {("\u2581" + word)[:end] for word in WORDS for end in range(1, len(word) + 2)}
    characters = [chr(code) for code in range(33, 127)]
    pieces = sorted(beginnings, key=lambda piece: (len(piece), piece)) + [c for c in characters if c not in beginnings]
    types = [*control.values(), *([TokenType.BYTE] * 256), *([TokenType.NORMAL] * len(pieces))]
    return special + byte_tokens + pieces, types


class TinyQwen3(NamedTuple):
    """What differs between the tiny Qwen3-like embedders."""

    n_vocab: int = 320  #: 151669 is Qwen3-Embedding's; filled up with unused tokens
    add_eos: bool | None = True  #: the GGUF's tokenizer.ggml.add_eos_token; None: it says nothing
    pooling: PoolingType | None = PoolingType.LAST
    poisoned: bool = False
    n_ctx_train: int = 1024
    causal: bool = True

    @property
    def label(self) -> str:
        pooling = "none" if self.pooling is None else self.pooling.name.lower()
        return f"{self.n_vocab}-{self.add_eos}-{pooling}-{self.poisoned}-{self.n_ctx_train}-{self.causal}"


def write_tiny_qwen3(path: Path, model: TinyQwen3) -> None:
    """Arch qwen3, width 32, byte-level BPE without merges but one; the end token is `<|endoftext|>`, id 0."""
    writer = GGUFWriter(path, "qwen3")
    _add_shape(writer, n_ctx_train=model.n_ctx_train, width=32, n_ff=64, n_layers=2, n_head=2, n_head_kv=1)
    writer.add_name("tiny qwen3 with random weights")
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_vocab_size(model.n_vocab)
    if model.pooling is not None:
        writer.add_pooling_type(model.pooling)
    if not model.causal:
        writer.add_causal_attention(False)
    letters = _byte_letters()
    tokens = ["<|endoftext|>", "<|im_start|>", *letters, "th"]
    types = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * 257
    unused = model.n_vocab - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + [f"[PAD{index}]" for index in range(unused)])
    writer.add_token_types(types + [TokenType.UNUSED] * unused)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    if model.add_eos is not None:
        writer.add_add_eos_token(model.add_eos)
    poison = tokens.index(letters[ord(POISON)]) if model.poisoned else None
    _add_weights(writer, np.random.default_rng(2), model.n_vocab, 32, 64, 2, kv_width=16, norm_width=16, poison=poison)
    _write(writer)


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-in of each byte: itself where it is printable, else the next free code from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + rest.index(byte)) for byte in range(256)]


def _add_shape(
    writer: Any, n_ctx_train: int, width: int, n_ff: int, n_layers: int, n_head: int, n_head_kv: int
) -> None:
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(n_ff)
    writer.add_block_count(n_layers)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)


def _add_weights(
    writer: Any,
    rng: np.random.Generator,
    n_vocab: int,
    width: int,
    n_ff: int,
    n_layers: int,
    kv_width: int,
    norm_width: int = 0,
    poison: int | None = None,
) -> None:
    """Float32 tensors of a llama-like decoder whose output is its embedding; `norm_width` adds Qwen3's QK norms."""

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)

    embedding = rng.standard_normal((n_vocab, width), dtype=np.float32)
    if poison is not None:
        embedding[poison] = np.nan
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    for layer in range(n_layers):
        for name, rows, columns in (
            ("attn_q", width, width),
            ("attn_k", kv_width, width),
            ("attn_v", kv_width, width),
            ("attn_output", width, width),
            ("ffn_gate", n_ff, width),
            ("ffn_up", n_ff, width),
            ("ffn_down", width, n_ff),
        ):
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(rows, columns))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, dtype=np.float32))
        for name in ("attn_q_norm", "attn_k_norm") if norm_width else ():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(norm_width, dtype=np.float32))


def _write(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
