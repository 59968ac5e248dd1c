"""What the tests of files and batches share."""

import json
import secrets
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from api.batches import names
from api.batches.file_store import FileStore
from api.batches.records import BatchRecord, FileRecord
from api.batches.storage import Storage
from tests.unit.fake_jobs import EMBED

KINDS = ("local", "memory")


def storage_url(kind: str, folder: Path) -> str:
    """Of an empty storage: a local folder, or what has neither folders nor renames, as object stores."""
    return str(folder / "files") if kind == "local" else f"memory://{secrets.token_hex(8)}"


def storage_of(kind: str, folder: Path) -> Storage:
    return Storage(storage_url(kind, folder))


async def put(files: FileStore, data: bytes, *, key: str = "", purpose: str = "batch", expires: int = 0) -> FileRecord:
    async with aclosing(await files.begin()) as upload:
        await upload.write(data)
        return await upload.commit("in.jsonl", purpose, key, expires or None)


def line(custom_id: str, url: str = "/v1/embeddings", **body: Any) -> bytes:
    body = {"model": EMBED, "input": f"text {custom_id}"} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def batch_of(input_file_id: str = "file-0", **values: Any) -> BatchRecord:
    given = {"id": names.new_batch_id(), "endpoint": "/v1/embeddings", "input_file_id": input_file_id}
    now_s = int(time.time())
    return BatchRecord(**(given | {"created_at": now_s, "expires_at": now_s + 86_400} | values))
