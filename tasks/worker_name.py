"""The name under which a worker claims requests and beats, and the key of the models it serves."""

import socket

from tasks.contracts import models_key
from tasks.settings import Settings


def worker_name(settings: Settings) -> str:
    """LIS_WORKER_NAME, or the host's name. Two workers on one host need different names."""
    return settings.worker_name or socket.gethostname()


def served_models_key(settings: Settings) -> str:
    """`models_key` of the aliases in the settings."""
    return models_key(settings.model_alias, settings.embedding_model_alias if settings.embedding_enabled else None)
