"""What benchmarks and tests of batches share: input files, batches over HTTP, and reading of their answers."""

import base64
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from tests.stack import EMBED

ENDED = ("completed", "failed", "expired", "cancelled")
WORDS = ("river", "bread", "train", "star", "garden", "clock", "bridge", "whale", "paper", "copper", "of", "and", "the")


def text_of(rng: random.Random, number: int, words: int) -> str:
    return f"{number} " + " ".join(rng.choices(WORDS, k=words))


def embedding_line(number: int, text: str | list[str], **body: Any) -> dict[str, Any]:
    whole = {"model": EMBED, "input": text, **body}
    return {"custom_id": f"text-{number}", "method": "POST", "url": "/v1/embeddings", "body": whole}


def upload(client: httpx.Client, lines: Sequence[dict[str, Any]]) -> str:
    data = "\n".join(json.dumps(line) for line in lines).encode()
    answer = client.post("/v1/files", files={"file": ("input.jsonl", data)}, data={"purpose": "batch"}, timeout=120.0)
    answer.raise_for_status()
    return str(answer.json()["id"])


def create(client: httpx.Client, lines: Sequence[dict[str, Any]]) -> str:
    """Upload and start. Returns the batch's id."""
    asked = {"input_file_id": upload(client, lines), "endpoint": lines[0]["url"], "completion_window": "24h"}
    answer = client.post("/v1/batches", json=asked)
    answer.raise_for_status()
    return str(answer.json()["id"])


def retrieve(client: httpx.Client, batch_id: str) -> dict[str, Any] | None:
    """None: the API does not answer now."""
    try:
        answer = client.get(f"/v1/batches/{batch_id}", timeout=5.0)
    except httpx.HTTPError:
        return None
    batch: dict[str, Any] = answer.json()
    return batch if answer.status_code == 200 else None


def done_lines(batch: dict[str, Any] | None) -> int:
    counts = batch["request_counts"] if batch else {}
    return int(counts.get("completed", 0)) + int(counts.get("failed", 0))


def wait_ended(client: httpx.Client, batch_id: str, timeout_s: float, pause_s: float = 0.1) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        batch = retrieve(client, batch_id)
        if batch is not None and batch["status"] in ENDED:
            return batch
        time.sleep(pause_s)
    raise AssertionError(f"the batch has not ended within {timeout_s} s: {retrieve(client, batch_id)}")


def answers(client: httpx.Client, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file."""
    if file_id is None:
        return []
    answer = client.get(f"/v1/files/{file_id}/content", timeout=120.0)
    answer.raise_for_status()
    return [json.loads(line) for line in answer.text.splitlines()]


def vectors_of(body: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    rows = [item["embedding"] for item in body["data"]]
    floats = [np.frombuffer(base64.b64decode(row), "<f4") if isinstance(row, str) else row for row in rows]
    return np.array(floats, dtype=np.float32)


def least_cosine(one: Any, other: Any) -> float:
    """The least of the cosines of rows that belong together."""
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float((np.sum(np.asarray(one) * np.asarray(other), axis=1) / norms).min())


def embed_singly(client: httpx.Client, texts: Sequence[str]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """A request for each text."""
    rows = []
    for text in texts:
        answer = client.post("/v1/embeddings", json={"model": EMBED, "input": text})
        answer.raise_for_status()
        rows.append(vectors_of(answer.json())[0])
    return np.array(rows)
