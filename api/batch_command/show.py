"""What `list`, `status`, `wait` and `fetch` print."""

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from api.batch_command.http_client import FINAL, BatchApi, Json
from api.batch_command.problems import CommandError
from api.batch_command.progress import Bar

POLL_S = 0.5
MAX_POLL_S = 5.0
TIMES = (
    *("created_at", "in_progress_at", "finalizing_at", "completed_at", "failed_at", "cancelling_at", "cancelled_at"),
    *("expired_at", "expires_at"),
)


def print_batches(batches: list[Json]) -> None:
    table = Table("batch", "status", "endpoint", "done", "failed", "created", box=None, pad_edge=False)
    for batch in batches:
        done, failed, total = counts_of(batch)
        table.add_row(
            batch["id"],
            batch["status"],
            batch["endpoint"],
            f"{done:,} / {total:,}",
            str(failed),
            _at(batch["created_at"]),
        )
    _console().print(table, soft_wrap=True)


def print_batch(batch: Json) -> None:
    done, failed, total = counts_of(batch)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("batch", batch["id"])
    table.add_row("status", batch["status"])
    table.add_row("endpoint", batch["endpoint"])
    table.add_row("done", f"{done:,} of {total:,}, {failed:,} failed")
    for name in ("input_file_id", "output_file_id", "error_file_id"):
        if batch.get(name):
            table.add_row(name.removesuffix("_id").replace("_", " "), batch[name])
    for name in TIMES:
        if batch.get(name):
            table.add_row(name.removesuffix("_at"), _at(batch[name]))
    for error in (batch.get("errors") or {}).get("data") or []:
        place = f"line {error['line']}: " if error.get("line") else ""
        table.add_row("error", f"{place}{error['message']}")
    _console().print(table, soft_wrap=True)


def counts_of(batch: Json) -> tuple[int, int, int]:
    """Done (failed ones too), failed, total."""
    counts = batch.get("request_counts") or {}
    completed, failed = int(counts.get("completed") or 0), int(counts.get("failed") or 0)
    return completed + failed, failed, int(counts.get("total") or 0)


def wait_for(api: BatchApi, batch_id: str) -> Json:
    """The batch when it has ended, with a progress bar until then."""
    batch = api.batch(batch_id)
    pause_s = POLL_S
    bar: Bar | None = None
    try:
        while batch["status"] not in FINAL:
            done, _, total = counts_of(batch)
            if bar is None and total:
                bar = Bar(total, done)
                bar.__enter__()
            if bar is not None:
                bar.update(done, batch["status"])
            time.sleep(pause_s)
            pause_s = min(MAX_POLL_S, pause_s * 1.3)
            batch = api.batch(batch_id)
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)
    return batch


def fetch_files(api: BatchApi, batch_id: str, output: Path) -> bool:
    """Write its files, each under its name when it is whole. True: it has an error file."""
    batch = api.batch(batch_id)
    output_id, errors_id = batch.get("output_file_id"), batch.get("error_file_id")
    if not output_id and not errors_id:
        raise CommandError(f"{batch_id} has no output: it is {batch['status']}")
    if str(output) == "-":
        for file_id in filter(None, (output_id, errors_id)):
            _copy(api, file_id, sys.stdout.buffer)
        return bool(errors_id)
    for file_id, path in ((output_id, output), (errors_id, output.with_name(output.name + ".errors.jsonl"))):
        if file_id:
            part = path.with_name(path.name + ".part")
            with part.open("wb") as out:
                _copy(api, file_id, out)
            part.replace(path)
            _console().print(str(path), soft_wrap=True, highlight=False)
    return bool(errors_id)


def _copy(api: BatchApi, file_id: str, out: IO[bytes]) -> None:
    with api.content(file_id) as chunks:
        for chunk in chunks:
            out.write(chunk)
    out.flush()


def _console() -> Console:
    return Console(highlight=False)


def _at(unix_s: Any) -> str:
    return datetime.fromtimestamp(int(unix_s)).strftime("%Y-%m-%d %H:%M:%S")
