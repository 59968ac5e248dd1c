"""`python -m llama_cpp.server`, with its weights in the same kind of buffers as this server's.

Where llama.cpp was compiled for AMX by GCC 12 or 13 its AMX code dies of an illegal instruction (see
tasks/engines/llamacpp/backend.py); llama_cpp.server has no option against that, so the default is changed here.
"""

from typing import Any

import llama_cpp.llama_cpp as library
from llama_cpp.server.__main__ import main

from tasks.engines.llamacpp.backend import has_amx

defaults = library.llama_model_default_params


def same_buffers() -> Any:
    params = defaults()
    params.use_extra_bufts = not has_amx()
    return params


library.llama_model_default_params = same_buffers

if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
