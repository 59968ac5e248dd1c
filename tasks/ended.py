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
