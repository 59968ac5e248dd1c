"""Ids of calls."""

import re
import secrets

USABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class CallIds:
    """The ids of one answer's calls."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def new(self, own: str = "") -> str:
        """`own`: the model's, taken when it can serve as one and was not there before."""
        call_id = own if USABLE.fullmatch(own) and own not in self._given else f"call_{secrets.token_hex(12)}"
        self._given.add(call_id)
        return call_id
