"""The registry of engines. A new one is a folder beside this file and a line in `ENGINES`."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from tasks.engines.base import ChatEngine, EmbeddingEngine
from tasks.settings import Settings

#: LIS_BACKEND -> module with a function `load(settings, report) -> Engines`; imported when chosen, for its
#: libraries need not be installed otherwise.
ENGINES = {
    "llamacpp": "tasks.engines.llamacpp",
    "fake": "tasks.engines.fake",
}

Report = Callable[[str], None]  #: called with what is being loaded, for the heartbeat


class Engines(NamedTuple):
    chat: ChatEngine
    embedding: EmbeddingEngine | None


def load_engines(settings: Settings, report: Report) -> Engines:
    """Load and warm up the models. Raises ModelLoadError with one clear line."""
    engines: Engines = import_module(ENGINES[settings.backend]).load(settings, report)
    return engines
