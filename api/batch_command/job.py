"""What a run of `embed` is to do, and where it keeps what it has done."""

from pathlib import Path
from typing import Any, NamedTuple

from api.batch_command.inputs import Source
from api.batch_command.request_files import Limits


class Job(NamedTuple):
    source: Source
    output: Path
    model: str
    dimensions: int | None
    detach: bool = False  #: send all of it at once, and leave it running when the command ends
    limits: Limits = Limits()

    @property
    def state_path(self) -> Path:
        return self.output.with_name(self.output.name + ".state")

    @property
    def vectors_path(self) -> Path:
        return self.output.with_name(self.output.name + ".vectors")


def why_it_ended(state: dict[str, Any]) -> str:
    """Of a batch that did not complete."""
    errors = (state.get("errors") or {}).get("data") or []
    reasons = [
        f"line {error['line']}: {error['message']}" if error.get("line") else error["message"] for error in errors
    ]
    shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
    return f"batch {state['id']} is {state['status']}" + (f": {shown}" if shown else "")
