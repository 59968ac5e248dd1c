"""How a request ended in the engine process, as the worker hears of it."""

import msgspec

from tasks.contracts import FinishReason, Timings, Usage

LOST = "lost"  #: outcome of a request whose engine process died


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """`outcome` is `finished`, `failed`, `cancelled` or LOST."""

    outcome: str
    reason: FinishReason | None = None  #: of a finished one
    usage: Usage = Usage()
    timings: Timings = Timings()
    kept: "Kept | None" = None  #: of a request without a reply channel


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What an embeddings request that nobody listens to has come to: vectors, or why there are none."""

    width: int = 0
    data: bytes = b""  #: as in a `Vectors` frame
    truncated: list[int] = []
    error: str = ""
