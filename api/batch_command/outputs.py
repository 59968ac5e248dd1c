"""OUTPUT, written in the order of the input: .jsonl, .npy or .parquet. It gets its name when it is whole."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from api.batch_command.inputs import Item
from api.batch_command.problems import UsageError
from api.batch_command.vectors import VectorFile

ROWS_PER_GROUP = 1024
NO_PYARROW = "a .parquet needs pyarrow: pip install 'local-inference-server[parquet]' (or write .jsonl or .npy)"


class Row(NamedTuple):
    item: Item
    vector: Any  #: float32; None: there is none
    error: str  #: why not


Rows = Iterable[Row]


def check_output(path: Path, source: Path) -> None:
    """Raises UsageError, also when the output would replace the input or be one of its texts."""
    if path.suffix.lower() not in WRITERS:
        raise UsageError(f"{path} is none of {', '.join(WRITERS)}")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}")
    if source.resolve() in (path.resolve(), *path.resolve().parents):
        raise UsageError(f"{path} is the input" if source.is_file() else f"{path} is in the folder that is the input")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise UsageError(NO_PYARROW) from None


def write_output(path: Path, rows: Rows, vectors: VectorFile, count: int) -> None:
    part = path.with_name(path.name + ".part")
    WRITERS[path.suffix.lower()](part, rows, vectors, count)
    part.replace(path)


def _write_jsonl(path: Path, rows: Rows, vectors: VectorFile, count: int) -> None:
    """`line` (or `file`), `text`, `embedding`; where there is none, `embedding` is null and `error` says why."""
    with path.open("w", encoding="utf-8", newline="\n") as out:
        for item, vector, error in rows:
            place = {"file": item.file} if item.file else {"line": item.line}
            head = json.dumps({**place, "text": item.text}, ensure_ascii=False)[:-1]
            if vector is None:
                out.write(f'{head}, "embedding": null, "error": {json.dumps(error, ensure_ascii=False)}}}\n')
            else:  # nine digits give back the very float32
                out.write(f'{head}, "embedding": [{", ".join(map("{:.9g}".format, vector.tolist()))}]}}\n')


def _write_npy(path: Path, rows: Rows, vectors: VectorFile, count: int) -> None:
    """float32, a row a text; NaN where there is no vector."""
    import numpy as np

    for _ in rows:  # whoever counts the failures sees each
        pass
    vectors.flush()
    if vectors.width:
        shutil.copyfile(vectors.path, path)
    else:
        with path.open("wb") as out:
            np.save(out, np.empty((count, 0), dtype="<f4"))


def _write_parquet(path: Path, rows: Rows, vectors: VectorFile, count: int) -> None:
    """Columns `line` and `file` (one of them null), `text`, `embedding` (list of float32, or null) and `error`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("line", pa.int64()),
            ("file", pa.string()),
            ("text", pa.string()),
            ("embedding", pa.list_(pa.float32())),
            ("error", pa.string()),
        ]
    )
    with pq.ParquetWriter(path, schema) as writer:
        group: list[dict[str, Any]] = []
        for item, vector, error in rows:
            group.append(
                {
                    "line": item.line or None,
                    "file": item.file or None,
                    "text": item.text,
                    "embedding": vector,
                    "error": error or None,
                }
            )
            if len(group) == ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_pylist(group, schema))
                group = []
        if group:
            writer.write_table(pa.Table.from_pylist(group, schema))


WRITERS: dict[str, Callable[[Path, Rows, VectorFile, int], None]] = {
    ".jsonl": _write_jsonl,
    ".npy": _write_npy,
    ".parquet": _write_parquet,
}
