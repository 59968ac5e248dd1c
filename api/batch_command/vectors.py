"""Vectors on disk while a run goes on: a .npy file of float32, one row a text, NaN where there is none yet."""

import base64
import math
from pathlib import Path
from typing import Any

CHUNK_ROWS = 4096


class VectorFile:
    """Memory-mapped, so that rows may come in any order and none is kept in memory. Made when the width is known."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self._n_rows = rows
        self._rows: Any = None
        if path.exists():
            self._rows = _opened(path)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def width(self) -> int:
        """0: not known yet."""
        return 0 if self._rows is None else int(self._rows.shape[1])

    def put(self, index: int, embedding: Any) -> str:
        """`embedding` as the API gave it: base64 of little-endian float32, or a list of numbers. What is wrong with it,
        or an empty text."""
        import numpy as np

        try:
            if isinstance(embedding, str):
                row = np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
            else:
                row = np.asarray(embedding, dtype="<f4")
        except (ValueError, TypeError):
            return "the server's answer is not a vector"
        if row.ndim != 1 or not row.size or not np.isfinite(row).all():
            return "the server's answer is not a vector of finite numbers"
        if self._rows is None:
            self._make(row.size)
        if row.size != self.width:
            return f"the vector has {row.size} numbers, those before it {self.width}"
        self._rows[index] = row
        return ""

    def has(self, index: int) -> bool:
        return self._rows is not None and not math.isnan(self._rows[index, 0])

    def get(self, index: int) -> Any:
        """The row; None: there is none."""
        return self._rows[index] if self.has(index) else None

    def count(self) -> int:
        """Rows that are there."""
        import numpy as np

        if self._rows is None:
            return 0
        starts = range(0, self._n_rows, CHUNK_ROWS)
        return sum(int((~np.isnan(self._rows[at : at + CHUNK_ROWS, 0])).sum()) for at in starts)

    def flush(self) -> None:
        """On disk, and out of this process's memory."""
        if self._rows is not None:
            self._rows.flush()
            self._rows = _opened(self._path)

    def close(self) -> None:
        if self._rows is not None:
            self._rows.flush()
        self._rows = None

    def _make(self, width: int) -> None:
        import numpy as np

        name = self._path.with_name(self._path.name + ".new")
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._n_rows, width)}
        with name.open("wb") as out:
            np.lib.format.write_array_header_1_0(out, header)
            for at in range(0, self._n_rows, CHUNK_ROWS):
                out.write(np.full((min(CHUNK_ROWS, self._n_rows - at), width), np.nan, dtype="<f4").tobytes())
        name.replace(self._path)
        self._rows = _opened(self._path)


def _opened(path: Path) -> Any:
    import numpy as np

    return np.lib.format.open_memmap(path, mode="r+")
