"""`deadline_ms` in a body: the milliseconds from its receipt within which the answer must have begun."""

import time
from typing import Any, cast

from quart import Request

from api.protocol.fields import MAX_INT, Fields

DEADLINE = "lis.deadline_ms"  #: scope key


def note_deadline(request: Request, body: dict[str, Any]) -> None:
    """For a body that has just been received. Raises InvalidRequest."""
    deadline_ms = Fields(body).integer("deadline_ms", 1, MAX_INT)
    if deadline_ms is not None:
        cast(dict[str, Any], request.scope)[DEADLINE] = int(time.time() * 1000) + deadline_ms


def deadline_of(request: Request) -> int:
    """Unix time (ms, this process's clock) of the request's deadline; 0: it has none."""
    deadline: int = cast(dict[str, Any], request.scope).get(DEADLINE, 0)
    return deadline
