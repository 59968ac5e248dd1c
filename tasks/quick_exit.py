"""A process that ends without a last round of garbage collection."""

import atexit
import gc


def skip_last_collection() -> None:
    """Call at start. Finalizing, CPython 3.11 walks every object of every module: 0.2-0.8 s that nobody waits for."""
    atexit.register(gc.freeze)
