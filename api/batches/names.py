"""Ids of files and batches, and where they lie under `LIS_FILES_URL`. Ids begin with their time, so they sort by it."""

import hashlib
import re
import secrets
import time

FILE_ID = re.compile(r"file-[0-9a-f]{24}")
BATCH_ID = re.compile(r"batch_[0-9a-f]{24}")
FILES, PARTS, BATCHES = "files", "parts", "batches"
RECORD, CONTENT = ".json", ".data"


def new_file_id() -> str:
    return f"file-{_now()}{secrets.token_hex(6)}"


def new_batch_id() -> str:
    return f"batch_{_now()}{secrets.token_hex(6)}"


def file_id_of(batch_id: str, kind: str) -> str:
    """The id of what a batch writes: always the same one."""
    made = batch_id.removeprefix("batch_")[:12]
    return f"file-{made}{hashlib.sha256(f'{batch_id} {kind}'.encode()).hexdigest()[:12]}"


def made_at_s(any_id: str) -> float:
    """When an id was made: unix time."""
    return int(re.split("[-_]", any_id)[1][:12], 16) / 1000


def file_record(file_id: str) -> str:
    return f"{FILES}/{file_id}{RECORD}"


def file_content(file_id: str) -> str:
    return f"{FILES}/{file_id}{CONTENT}"


def batch_folder(batch_id: str) -> str:
    return f"{BATCHES}/{batch_id}"


def batch_version(batch_id: str, version: int) -> str:
    return f"{BATCHES}/{batch_id}/{version:08d}{RECORD}"


def part_folder(batch_id: str) -> str:
    return f"{PARTS}/{batch_id}"


def part(batch_id: str, name: str) -> str:
    return f"{PARTS}/{batch_id}/{name}"


def _now() -> str:
    return f"{int(time.time() * 1000):012x}"
