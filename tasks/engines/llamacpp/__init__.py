"""The llama.cpp engine: chat and embeddings on llama-cpp-python's low-level API. The only importer of llama_cpp."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.engines import Engines, Report
    from tasks.settings import Settings

# GNU OpenMP's threads spin for some 300 000 rounds at each of the many barriers of a decode step, and another process
# that wants a core in that time costs a whole time slice. On two busy cores SmolLM2-135M did 0.2-16 tok/s with that and
# 6-18 with this; on idle ones both did some 60. Read when libgomp is loaded, so it stands before llama_cpp's import.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def load(settings: "Settings", report: "Report") -> "Engines":
    """Load and warm up the chat model and, where wanted, the embedding model. Raises ModelLoadError.

    Close the embedding engine before the chat engine: the chat engine's thread frees both.
    """
    # Imported here so that the pure modules of this package can be used without llama.cpp.
    from tasks.engines import Engines
    from tasks.engines.llamacpp.decoder import Decoder
    from tasks.engines.llamacpp.embedder import LlamaEmbedder
    from tasks.engines.llamacpp.engine import LlamaChatEngine
    from tasks.engines.llamacpp.model import ChatModel
    from tasks.engines.llamacpp.warm_up import warm_up

    report(f"loading {settings.model_alias}")
    decoder = Decoder(lambda: ChatModel(settings))
    try:
        chat = LlamaChatEngine(decoder, settings)
        warm_up(chat)
        embedding = None
        if settings.embedding_enabled:
            report(f"loading {settings.embedding_model_alias}")
            embedding = LlamaEmbedder.load(settings, run_on_device=decoder.call)
    except BaseException:
        decoder.close()
        raise
    return Engines(chat, embedding)
