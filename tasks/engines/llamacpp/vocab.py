"""A model's vocabulary: text to tokens, token to bytes. Any thread may use it while the model is loaded."""

import ctypes
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from tasks.engines.llamacpp.prompt_text import SpecialToken

NAMES = ("bos", "eos", "eot", "unk", "sep", "pad", "mask", "cls")


def tokenize(vocab: Any, text: str | bytes, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
    """`add_special`: with what the model wants at either end (BOS, EOS, CLS, SEP). `vocab` is llama.cpp's handle."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", errors="replace")
    size = len(data) + 16
    while True:
        buffer = (llama_cpp.llama_token * size)()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, size, add_special, parse_special)
        if count >= 0:
            return list(buffer[:count])
        size = -count  # what llama.cpp says it needs


class FillInTokens(NamedTuple):
    """Marks of a prompt whose middle is to be filled in: before the prefix, before the suffix, before the answer."""

    prefix: int
    suffix: int
    middle: int


class Vocab:
    def __init__(self, model: Any) -> None:
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(self._vocab)
        self.bos: int = llama_cpp.llama_vocab_bos(self._vocab)  #: -1: there is none, as for the next two
        self.eos: int = llama_cpp.llama_vocab_eos(self._vocab)
        self.eot: int = llama_cpp.llama_vocab_eot(self._vocab)
        is_sentencepiece = llama_cpp.llama_vocab_type(self._vocab) == llama_cpp.LLAMA_VOCAB_TYPE_SPM
        self._adds_blank = is_sentencepiece and metadata(model, "tokenizer.ggml.add_space_prefix") != "false"
        self.special_tokens = [token for id_ in range(self.n_tokens) if (token := self._special(id_))]
        self._special_ids = frozenset(token.id for token in self.special_tokens)
        self._pieces: dict[int, bytes] = {}
        self._eog = {id_ for id_ in range(self.n_tokens) if llama_cpp.llama_vocab_is_eog(self._vocab, id_)}
        self.eog = sorted(self._eog)  #: all tokens that end an answer
        self.not_eog = np.setdiff1d(np.arange(self.n_tokens), self.eog)
        self.fill_in = self._fill_in_tokens()

    @property
    def handle(self) -> Any:
        """llama.cpp's."""
        return self._vocab

    def tokenize(self, text: str, parse_special: bool = False, add_special: bool = False) -> list[int]:
        """`parse_special`: control tokens spelled in `text` become those tokens. `add_special`: see above."""
        return tokenize(self._vocab, text, add_special=add_special, parse_special=parse_special)

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; none for a control token."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def spelled(self, token: int) -> bytes:
        """The bytes a token stands for; a control token's spelling."""
        return self.piece(token) or (self.text(token).encode() if token in self._special_ids else b"")

    def first_piece(self, token: int) -> bytes:
        """The bytes when it begins an answer: SentencePiece's blank before each word is no text there."""
        return self._piece(token, n_blanks_cut=1) if self._adds_blank else self.piece(token)

    def special_id(self, text: str) -> int | None:
        """The control token, or the user-defined one in angle brackets, of that spelling: no text to a grammar."""
        tokens = self.tokenize(text, parse_special=True)
        if len(tokens) != 1 or self.text(tokens[0]) != text:
            return None
        attributes = llama_cpp.llama_vocab_get_attr(self._vocab, tokens[0])
        in_brackets = text.startswith("<") and text.endswith(">")
        is_named = in_brackets and attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        return tokens[0] if is_named or attributes & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL else None

    def single_token(self, text: str) -> int | None:
        """The one token, of whatever kind, that is spelled so."""
        tokens = self.tokenize(text, parse_special=True)
        is_whole = len(tokens) == 1 and text.encode() in (self.text(tokens[0]).encode(), self.piece(tokens[0]))
        return tokens[0] if is_whole else None

    def is_eog(self, token: int) -> bool:
        """Does it end the answer (end of text, end of turn, …)?"""
        return token in self._eog

    def text(self, token: int) -> str:
        """How a template spells it; empty for -1."""
        if token < 0:
            return ""
        spelling: bytes = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return spelling.decode("utf-8", errors="replace")

    def named_texts(self) -> dict[str, str]:
        """`bos_token`, `eos_token` and so on, as chat templates know them; empty where the model has none."""
        ids = {"bos": self.bos, "eos": self.eos, "eot": self.eot}
        ids["sep"] = llama_cpp.llama_vocab_sep(self._vocab)
        ids["pad"] = llama_cpp.llama_vocab_pad(self._vocab)
        ids["mask"] = llama_cpp.llama_vocab_mask(self._vocab)
        ids["cls"] = llama_cpp.llama_vocab_bos(self._vocab)  # llama.cpp made them one
        ids["unk"] = next((token.id for token in self.special_tokens if token.is_unknown), -1)
        return {f"{name}_token": self.text(ids[name]) for name in NAMES}

    @property
    def user_defined(self) -> list[int]:
        """Tokens that llama.cpp reads in any text."""
        return [
            token
            for token in range(self.n_tokens)
            if llama_cpp.llama_vocab_get_attr(self._vocab, token) & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        ]

    def grammar_bytes(self, token: int) -> bytes:
        """How llguidance knows it: its bytes, or 0xff and its spelling where it is no text."""
        text = self.text(token)
        attributes = llama_cpp.llama_vocab_get_attr(self._vocab, token)
        is_mark = attributes & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN)
        if is_mark or (attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED and text[:1] == "<" and text[-1:] == ">"):
            return b"\xff" + text.encode()
        return self._piece(token)

    def _fill_in_tokens(self) -> FillInTokens | None:
        tokens = FillInTokens(
            llama_cpp.llama_vocab_fim_pre(self._vocab),
            llama_cpp.llama_vocab_fim_suf(self._vocab),
            llama_cpp.llama_vocab_fim_mid(self._vocab),
        )
        return tokens if min(tokens) >= 0 else None

    def _special(self, id_: int) -> SpecialToken | None:
        """Tokens that text must not become. User-defined ones (`<think>`) are text to llama.cpp in either case."""
        attributes = llama_cpp.llama_vocab_get_attr(self._vocab, id_)
        if not attributes & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN):
            return None
        text = self.text(id_)
        if not text:
            return None
        return SpecialToken(
            id_,
            text,
            strips_left=bool(attributes & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP),
            strips_right=bool(attributes & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP),
            is_unknown=bool(attributes & llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN),
        )

    def _piece(self, token: int, n_blanks_cut: int = 0) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, n_blanks_cut, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count


def metadata(model: Any, key: str) -> str | None:
    """A scalar of the GGUF's header as text; None when it is not there."""
    buffer = ctypes.create_string_buffer(256)
    length = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", errors="replace") if length >= 0 else None
