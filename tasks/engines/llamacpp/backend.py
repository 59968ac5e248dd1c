"""llama.cpp as a process-wide thing: its start, its log, loading a file. Shared by the chat engine and the embedder."""

import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp

from tasks.engines.base import ModelLoadError

#: llama.cpp's own lines. It calls every tensor it loads worth an INFO, and sound settings worth a WARN.
log = logging.getLogger("tasks.engines.llamacpp.library")

#: ggml_log_level (ggml.h): DEBUG, INFO, WARN, ERROR. llama-cpp-python 0.3.36 lists an older order in its own logger.
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.ERROR}
CONTINUED = 5  # GGML_LOG_LEVEL_CONT: more of the line before

_errors = threading.local()  # .lines: what llama.cpp said was wrong during `collected_errors`, on this thread


class _LogBridge:
    """Joins pieces to lines and logs them. llama.cpp calls it from any of its threads."""

    def __init__(self) -> None:
        self._line = ""
        self._level = logging.DEBUG
        self._lock = threading.Lock()

    def __call__(self, level: int, text: bytes, _user_data: Any) -> None:
        with self._lock:
            if level != CONTINUED:
                self._level = LEVELS.get(level, logging.DEBUG)
            self._line += text.decode("utf-8", errors="replace")
            *lines, self._line = self._line.split("\n")
            python_level = self._level
        for line in filter(None, map(str.strip, lines)):
            if python_level >= logging.ERROR and hasattr(_errors, "lines"):
                _errors.lines.append(line)
            else:
                log.log(python_level, "llama.cpp: %s", line)


@cache
def start_backend() -> Any:
    """Start llama.cpp once in this process and take over its log. The result keeps the callback alive."""
    callback = llama_cpp.llama_log_callback(_LogBridge())
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return callback


@contextmanager
def collected_errors() -> Iterator[list[str]]:
    """Errors that llama.cpp logs on this thread within the block come into the list instead of the log."""
    _errors.lines = []
    try:
        yield _errors.lines
    finally:
        del _errors.lines


def has_amx() -> bool:
    """Was llama.cpp compiled for a CPU with AMX?"""
    start_backend()
    return b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()


def load_model(path: Path, n_gpu_layers: int) -> Any:
    """llama.cpp's model handle; -1 layers: all. Raises ModelLoadError with llama.cpp's reason in one line."""
    start_backend()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers
    # GCC 12 and 13 drop the stores that fill ggml's AMX tile configuration, and the first prompt dies of an illegal
    # instruction (ggml-org/llama.cpp#26954). Weights outside of the "extra" buffers never meet that code.
    params.use_extra_bufts = not has_amx()
    with collected_errors() as errors:
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        reason = next((line for line in errors if "error loading" in line), errors[0] if errors else "no reason given")
        raise ModelLoadError(f"llama.cpp cannot load '{path.name}': {_without_path(reason, path)}")
    return model


def _without_path(reason: str, path: Path) -> str:
    """Where files lie is nobody's business but the operator's, who knows."""
    return reason.replace(str(path), path.name).split(": ", 1)[-1]
