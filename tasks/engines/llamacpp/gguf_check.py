"""Is this file a whole GGUF? Reads only its header. Pure but for the file.

Format: ggml's docs/gguf.md, versions 2 and 3. llama.cpp would say much the same with less help, or crash later at the
first missing page of a truncated file.
"""

import mmap
import re
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from tasks.engines.base import ModelLoadError

MAGIC = b"GGUF"
SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

#: ggml_type -> (elements of a block, bytes of a block), from ggml-common.h; of what files hold
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


class GgufHeader(NamedTuple):
    metadata: dict[str, Any]  #: scalars and strings; arrays are left out
    n_tensors: int
    expected_bytes: int  #: where the last tensor ends


class _BadHeader(Exception):
    """The header breaks off, or has impossible numbers."""


def check_gguf(path: Path) -> GgufHeader:
    """The header of a file that llama.cpp can be given. Raises ModelLoadError that names the file and its fault."""
    if not path.is_file():
        kind = "is a directory, not a GGUF file" if path.is_dir() else "does not exist"
        raise ModelLoadError(f"'{path.name}' {kind}")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(16)
        if not start.startswith(MAGIC):
            shown = f"it begins with {start!r}" if start else "it is empty"
            raise ModelLoadError(f"'{path.name}' is not a GGUF file: {shown}")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _Reader(data, len(MAGIC)).header()
        except _BadHeader as exc:
            raise ModelLoadError(f"'{path.name}' is truncated or corrupt: {exc} ({size} bytes in all)") from exc
    if size < header.expected_bytes:
        raise ModelLoadError(
            f"'{path.name}' is truncated: it has {size} bytes, its header says {header.expected_bytes}: get it again"
        )
    _check_shards(path, header.metadata.get("split.count", 0))
    return header


def _check_shards(path: Path, count: int) -> None:
    """llama.cpp opens the shards beside the first one by their names."""
    if count <= 1:
        return
    name = SHARD_NAME.match(path.name)
    if not name or int(name["count"]) != count:
        raise ModelLoadError(
            f"'{path.name}' is one of {count} parts of a split GGUF, or the parts joined into one file, which does not "
            f"work: keep all parts under their own names and choose the first, '…-00001-of-{count:05}.gguf'"
        )
    if int(name["number"]) != 1:
        raise ModelLoadError(f"'{path.name}' is part {int(name['number'])} of a split GGUF: choose part 1")
    for number in range(2, count + 1):
        part = path.with_name(f"{name['stem']}-{number:05}-of-{count:05}.gguf")
        if not part.is_file():
            raise ModelLoadError(f"the split GGUF '{path.name}' is incomplete: '{part.name}' is missing")


class _Reader:
    """Values one after another. Little-endian, as every GGUF that llama.cpp takes on a little-endian machine."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self._offset = offset

    def header(self) -> GgufHeader:
        version = self._scalar("I")
        if version not in (2, 3):
            raise _BadHeader(f"GGUF version {version} is unknown (2 and 3 are read)")
        n_tensors, n_pairs = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(n_pairs):
            key = self._string()
            value = self._value(self._scalar("I"))
            if value is not None:
                metadata[key] = value
        ends = [self._tensor_end() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise _BadHeader(f"its alignment is {alignment}")
        data_start = -(-self._offset // alignment) * alignment
        return GgufHeader(metadata, n_tensors, data_start + max(ends) if ends else self._offset)

    def _tensor_end(self) -> int:
        """Where the tensor's data end, counted from the start of all data. Of an unknown type: where they begin."""
        self._string()
        n_dimensions = self._scalar("I")
        if n_dimensions > 8:
            raise _BadHeader(f"a tensor has {n_dimensions} dimensions")
        n_elements = prod(self._scalar("Q") for _ in range(n_dimensions))
        block_elements, block_bytes = BLOCKS.get(self._scalar("I"), (1, 0))
        offset: int = self._scalar("Q")
        n_bytes: int = n_elements // block_elements * block_bytes
        return offset + n_bytes

    def _value(self, kind: int) -> Any:
        """A metadata value; None for an array, which is skipped."""
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._scalar(_format(kind))
        item_kind, count = self._scalar("I"), self._scalar("Q")
        if item_kind == STRING:
            for _ in range(count):  # a vocabulary has 150 000
                self._skip(self._scalar("Q"))
        elif item_kind == ARRAY:
            for _ in range(count):
                self._value(ARRAY)
        else:
            self._skip(count * struct.calcsize(_format(item_kind)))
        return None

    def _scalar(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + code, self._data, self._offset)
        except struct.error as exc:
            raise _BadHeader("its header breaks off") from exc
        self._offset += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        start = self._offset + 8
        self._skip(self._scalar("Q"))
        return self._data[start : self._offset].decode("utf-8", errors="replace")

    def _skip(self, count: int) -> None:
        self._offset += count
        if self._offset > len(self._data):
            raise _BadHeader("its header breaks off")


def _format(kind: int) -> str:
    if kind not in SCALARS:
        raise _BadHeader(f"metadata of unknown type {kind}")
    return SCALARS[kind]
