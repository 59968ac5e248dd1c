"""The command `local-inference-batch` against this server's own Files and Batches, on the fake engine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_batch_command import read_jsonl
from tests.stack import EMBED, FAKE_ENV, Process, Stack
from tests.support import wait_until

MAIN = "import signal; signal.signal(2, signal.default_int_handler); from api.batch_command.cli import main; main()"
SLOW = "slow " * 201  #: a text that takes LIS_FAKE_PREFILL


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    with Stack({**FAKE_ENV, "LIS_FAKE_PREFILL": "0.1", "LIS_BATCH_SLICE_TOKENS": "1000"}, keep=True) as stack:
        yield stack


def env(stack: Stack) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"{stack.base}/v1", "LIS_API_KEY": stack.key}


def command(stack: Stack, *words: object, code: int = 0) -> str:
    line = [sys.executable, "-c", MAIN, *map(str, words)]
    done = subprocess.run(line, env=env(stack), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def direct(stack: Stack, texts: list[str]) -> list[list[float]]:
    with stack.client() as client:
        answer = client.post("/v1/embeddings", json={"model": EMBED, "input": texts}).json()
    return [row["embedding"] for row in answer["data"]]


@pytest.mark.parametrize("kind", ["npy", "jsonl", "parquet"])
def test_vectors_are_those_of_single_calls(service: Stack, tmp_path: Path, kind: str) -> None:
    texts = [f"text {number} " + "word " * (number % 50) for number in range(300)]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    out = tmp_path / f"out.{kind}"
    assert "300 of 300 texts" in command(service, "embed", tmp_path / "in.jsonl", "-o", out)
    if kind == "npy":
        got = np.load(out)
    elif kind == "jsonl":
        got = np.array([row["embedding"] for row in read_jsonl(out)])
    else:
        import pyarrow.parquet as pq

        got = np.array(pq.read_table(out)["embedding"].to_pylist())
    assert np.allclose(got, [row for at in range(0, 300, 100) for row in direct(service, texts[at : at + 100])])


def test_texts_that_the_model_fails_on_are_reported(service: Stack, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\nFAKE-ERROR\n\nfour\n")
    told = command(service, "embed", tmp_path / "in.txt", "-o", tmp_path / "out.npy", code=1)
    assert "line 2: " in told
    assert "line 3: the text is blank" in told
    assert np.isnan(np.load(tmp_path / "out.npy")).all(axis=1).tolist() == [False, True, True, False]


def test_a_model_that_is_not_served_is_told(service: Stack, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\n")
    told = command(service, "embed", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "--model", "other", code=1)
    assert "other" in told


@pytest.mark.parametrize("options", [[], ["--detach"]])
def test_ctrl_c_and_resume(service: Stack, tmp_path: Path, options: list[str]) -> None:
    texts = [f"{SLOW} {number}" for number in range(60)]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    words = ["embed", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npy")]
    running = Process([sys.executable, "-c", MAIN, *words, *options], env(service), tmp_path / "log")

    def is_under_way() -> bool:
        with service.client() as client:
            newest = client.get("/v1/batches?limit=1").json()["data"]
        return bool(newest) and newest[0]["status"] == "in_progress" and newest[0]["request_counts"]["total"] == 60

    wait_until(is_under_way, "the batch runs", 30.0)
    running.popen.send_signal(signal.SIGINT)
    assert running.popen.wait(30) == 130
    told = running.log.read_text()
    assert ("left running: batch_" if options else "cancelled on the server: 1") in told
    command(service, *words, "--resume")
    assert np.allclose(np.load(tmp_path / "out.npy"), direct(service, texts))


def test_list_status_wait_and_fetch(service: Stack, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    told = command(service, "embed", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "--no-wait")
    batch_id = told.partition("sent: ")[2].partition(";")[0]
    assert "2 of 2, 0 failed" in command(service, "wait", batch_id)
    assert batch_id in command(service, "list")
    assert "completed" in command(service, "status", batch_id)
    command(service, "fetch", batch_id, "-o", tmp_path / "raw.jsonl")
    assert [row["custom_id"] for row in read_jsonl(tmp_path / "raw.jsonl")] == ["0", "1"]
