"""What `list`, `status`, `wait` and `fetch` print."""

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

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
    rows = [("batch", "status", "endpoint", "done", "failed", "created")]
    for batch in batches:
        done, failed, total = counts_of(batch)
        amount = f"{done:,} / {total:,}"
        rows.append((batch["id"], batch["status"], batch["endpoint"], amount, f"{failed:,}", _at(batch["created_at"])))
    _print_rows(rows)


def print_batch(batch: Json) -> None:
    done, failed, total = counts_of(batch)
    rows = [
        ("batch", batch["id"]),
        ("status", batch["status"]),
        ("endpoint", batch["endpoint"]),
        ("done", f"{done:,} of {total:,}, {failed:,} failed"),
    ]
    for name in ("input_file_id", "output_file_id", "error_file_id"):
        if batch.get(name):
            rows.append((name.removesuffix("_id").replace("_", " "), batch[name]))
    rows += [(name.removesuffix("_at"), _at(batch[name])) for name in TIMES if batch.get(name)]
    for error in (batch.get("errors") or {}).get("data") or []:
        place = f"line {error['line']}: " if error.get("line") else ""
        rows.append(("error", f"{place}{error['message']}"))
    _print_rows(rows)


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    """In columns, however narrow the terminal is: an id that is cut is of no use."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201


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
            print(path)  # noqa: T201
    return bool(errors_id)


def _copy(api: BatchApi, file_id: str, out: IO[bytes]) -> None:
    with api.content(file_id) as chunks:
        for chunk in chunks:
            out.write(chunk)
    out.flush()


def _at(unix_s: Any) -> str:
    return datetime.fromtimestamp(int(unix_s)).strftime("%Y-%m-%d %H:%M:%S")
