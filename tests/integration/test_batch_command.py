"""The command `local-inference-batch` against a Batch API that holds, shuffles, fails and forgets."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.batch_server import KEY, MODEL, BatchServer, vector_of
from tests.stack import Process
from tests.support import wait_until

TEXTS = [f"text number {number}" for number in range(7)]


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as server:
        yield server


def command(server: BatchServer, *arguments: object, code: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
    variables = {"PATH": os.environ["PATH"], "LIS_SERVER": server.url, "OPENAI_API_KEY": KEY, "COLUMNS": "200"} | env
    words = [sys.executable, "-m", "api.batch_command.cli", *map(str, arguments)]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def start(server: BatchServer, folder: Path, *arguments: object) -> Process:
    env = {"PATH": os.environ["PATH"], "LIS_SERVER": server.url, "OPENAI_API_KEY": KEY}
    # a shell's background jobs ignore SIGINT, and what they start does
    main = "import signal; signal.signal(2, signal.default_int_handler); from api.batch_command.cli import main; main()"
    words = [sys.executable, "-c", main, *map(str, arguments)]
    return Process(words, env, folder / "command.log")


def txt(folder: Path, texts: list[str] | None = None) -> Path:
    path = folder / "in.txt"
    path.write_text("".join(f"{text}\n" for text in texts or TEXTS), "utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def is_sent(server: BatchServer, count: int = 1) -> bool:
    return len(server.batches) == count and all(b["request_counts"]["total"] for b in server.batches.values())


# -- inputs and outputs -------------------------------------------------------------------------------


def write_input(folder: Path, kind: str) -> tuple[Path, list[str]]:
    """The input, and options for it."""
    if kind == "txt":
        return txt(folder), []
    if kind == "jsonl":
        path = folder / "in.jsonl"
        path.write_text("\ufeff" + "\r\n\r\n".join(json.dumps({"id": 1, "body": text}) for text in TEXTS), "utf-8")
        return path, ["--field", "body"]
    if kind == "csv":
        path = folder / "in.csv"
        path.write_text("id,words\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(TEXTS)), "utf-8")
        return path, ["--column", "words"]
    path = folder / "texts"
    for number, text in enumerate(TEXTS):
        (path / f"sub{number % 2}").mkdir(parents=True, exist_ok=True)
        (path / f"sub{number % 2}" / f"{number}.md").write_text(text, "utf-8")
    (path / ".hidden").write_text("not this")
    return path, []


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "folder"])
def test_each_kind_of_input_gives_its_vectors_in_order(server: BatchServer, tmp_path: Path, kind: str) -> None:
    path, options = write_input(tmp_path, kind)
    server.shuffle = True
    command(server, "embed", path, "-o", tmp_path / "out.jsonl", *options)
    rows = read_jsonl(tmp_path / "out.jsonl")
    expected = sorted(TEXTS, key=lambda text: int(text[-1]) % 2) if kind == "folder" else TEXTS
    assert [row["text"] for row in rows] == expected
    assert all(np.array_equal(np.float32(row["embedding"]), vector_of(row["text"])) for row in rows)
    if kind == "folder":
        assert [row["file"] for row in rows][:2] == ["sub0/0.md", "sub0/2.md"]
    else:
        lines = {"txt": range(1, 8), "jsonl": range(1, 14, 2), "csv": range(2, 9)}[kind]
        assert [row["line"] for row in rows] == list(lines)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("out")) == ["out.jsonl"]
    assert server.files == {}, "what the server no longer needs to keep is deleted"


@pytest.mark.parametrize("as_base64", [True, False])
def test_npy_has_a_row_for_each_text(server: BatchServer, tmp_path: Path, as_base64: bool) -> None:
    server.as_base64 = as_base64
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--dimensions", 5)
    rows = np.load(tmp_path / "out.npy")
    assert rows.dtype == np.float32
    assert np.array_equal(rows, [vector_of(text, 5) for text in TEXTS])


def test_parquet_has_line_text_and_vector(server: BatchServer, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    command(server, "embed", txt(tmp_path, [*TEXTS, "FAIL"]), "-o", tmp_path / "out.parquet", code=1)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["line", "file", "text", "embedding", "error"]
    rows = table.to_pylist()
    assert [row["text"] for row in rows] == [*TEXTS, "FAIL"]
    assert rows[3]["embedding"] == vector_of(TEXTS[3]).tolist()
    assert (rows[7]["embedding"], rows[7]["line"], rows[7]["error"]) == (None, 8, "the model chokes on it")


def test_without_pyarrow_a_parquet_is_refused_before_anything_is_sent(server: BatchServer, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    out = tmp_path / "out.parquet"
    done = command(server, "embed", txt(tmp_path), "-o", out, code=2, PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    assert "local-inference-server[parquet]" in done.stderr
    assert server.batches == {}


# -- what fails ---------------------------------------------------------------------------------------


def test_texts_that_fail_are_reported_with_their_lines(server: BatchServer, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [b'{"text": "good"}', b"{", b'{"x": 1}', b'{"text": 3}', b'{"text": " "}', b'{"text": "\\ud800"}', b"\xff"]
    path.write_bytes(b"\n".join([*lines, b'{"text": "FAIL"}', b'{"text": "SILENT"}', b'{"text": "fine"}']))
    done = command(server, "embed", path, "-o", tmp_path / "out.npy", code=1)
    for reported in (
        "line 2: it is not JSON",
        "line 3: it has no field 'text'",
        "line 4: its field 'text' is not a text",
        "line 5: the text is blank",
        "line 6: it is not UTF-8 text",
        "line 7: it is not UTF-8 text",
        "line 8: the model chokes on it",
        "line 9: the batch has no answer for it",
    ):
        assert reported in done.stderr
    assert "2 of 10 texts embedded" in done.stderr
    rows = np.load(tmp_path / "out.npy")
    assert np.isnan(rows[1:9]).all()
    assert np.array_equal(rows[[0, 9]], [vector_of("good"), vector_of("fine")])


def test_resume_tries_failed_texts_again(server: BatchServer, tmp_path: Path) -> None:
    texts, out = txt(tmp_path, ["a", "SILENT b", "c"]), tmp_path / "out.jsonl"
    command(server, "embed", texts, "-o", out, code=1)
    command(server, "embed", texts, "-o", out, "--resume", code=1)
    asked = [batch["request_counts"]["total"] for batch in server.batches.values()]
    assert asked == [3, 1]
    assert [row["embedding"] is None for row in read_jsonl(out)] == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["in.pdf", "-o", "out.npy"], "in.pdf is none of"),
        (["nothing.txt", "-o", "out.npy"], "does not exist"),
        (["in.txt", "-o", "out.bin"], "out.bin is none of"),
        (["in.txt", "-o", "nowhere/out.npy"], "there is no folder"),
        (["in.txt", "-o", "there.npy"], "--overwrite"),
        (["in.csv", "-o", "out.npy", "--column", "c"], "may be one of: a, b"),
        (["empty.txt", "-o", "out.npy"], "there are no texts"),
        (["in.jsonl", "-o", "in.jsonl", "--overwrite"], "in.jsonl is the input"),
        ([".", "-o", "out.npy"], "is in the folder that is the input"),
    ],
)
def test_what_cannot_be_is_told_at_once(server: BatchServer, tmp_path: Path, arguments: list[str], told: str) -> None:
    txt(tmp_path)
    for name in ("in.pdf", "in.jsonl", "there.npy", "empty.txt"):
        (tmp_path / name).touch()
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    paths = [tmp_path / word if "." in word else word for word in arguments]
    done = command(server, "embed", *paths, code=2)
    assert told in done.stderr
    assert server.batches == {}


def test_a_wrong_key_is_told(server: BatchServer, tmp_path: Path) -> None:
    done = command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--key", "no", code=1)
    assert "wrong key (401)" in done.stderr


def test_a_server_that_is_not_there_is_told(server: BatchServer, tmp_path: Path) -> None:
    words = ["embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--server", "127.0.0.1:1"]
    assert "http://127.0.0.1:1/v1 does not answer" in command(server, *words, code=1).stderr


def test_a_batch_that_fails_validation_ends_the_run(server: BatchServer, tmp_path: Path) -> None:
    server.refuse_with = "no such model"
    done = command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--model", "x", code=1)
    assert "batch_0 is failed: line 1: no such model" in done.stderr
    server.refuse_with = None
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--model", "x", "--resume")


# -- a server that has troubles -----------------------------------------------------------------------


def test_a_download_that_breaks_is_made_again(server: BatchServer, tmp_path: Path) -> None:
    server.broken_downloads = 2
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), [vector_of(text) for text in TEXTS])


def test_a_server_that_is_away_for_a_while_is_waited_for(server: BatchServer, tmp_path: Path) -> None:
    server.hold_after = 2
    running = start(server, tmp_path, "embed", txt(tmp_path), "-o", tmp_path / "out.npy")
    wait_until(lambda: is_sent(server), "the batch is looked at")
    with server.lock:
        server.away, server.hold_after = 2, None
    assert running.popen.wait(60) == 0
    assert "the server starts (503); trying again" in running.log.read_text()


# -- Ctrl-C and --resume ------------------------------------------------------------------------------


def interrupt(server: BatchServer, folder: Path, *options: object) -> Path:
    """Ctrl-C when four of seven texts are done."""
    server.hold_after = 4
    running = start(server, folder, "embed", txt(folder), "-o", folder / "out.npy", *options)
    wait_until(lambda: is_sent(server), "the batch is looked at")
    running.popen.send_signal(signal.SIGINT)
    assert running.popen.wait(20) == 130, running.log.read_text()
    assert not (folder / "out.npy").exists()
    return running.log


def test_ctrl_c_cancels_and_resume_asks_only_for_the_rest(server: BatchServer, tmp_path: Path) -> None:
    log = interrupt(server, tmp_path)
    assert server.batches["batch_0"]["status"] == "cancelling"
    assert "batches cancelled on the server: 1" in log.read_text()
    refused = command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", code=2)
    assert "--resume goes on with it" in refused.stderr
    server.advance(server.batches["batch_0"])
    server.hold_after = None
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--resume")
    assert server.batches["batch_1"]["request_counts"]["total"] == 3
    assert np.array_equal(np.load(tmp_path / "out.npy"), [vector_of(text) for text in TEXTS])


def test_detached_ctrl_c_leaves_it_running_and_resume_collects_it(server: BatchServer, tmp_path: Path) -> None:
    log = interrupt(server, tmp_path, "--detach")
    assert server.batches["batch_0"]["status"] == "in_progress"
    assert "left running: batch_0" in log.read_text()
    server.hold_after = None
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--resume")
    assert list(server.batches) == ["batch_0"]
    assert np.array_equal(np.load(tmp_path / "out.npy"), [vector_of(text) for text in TEXTS])


def test_no_wait_sends_and_resume_collects(server: BatchServer, tmp_path: Path) -> None:
    done = command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--no-wait")
    assert "sent: batch_0" in done.stderr
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--resume")
    assert list(server.batches) == ["batch_0"]


def test_a_killed_run_goes_on_with_the_batch_that_runs(server: BatchServer, tmp_path: Path) -> None:
    server.hold_after = 4
    running = start(server, tmp_path, "embed", txt(tmp_path), "-o", tmp_path / "out.npy")
    wait_until(lambda: is_sent(server), "the batch is looked at")
    running.kill()
    server.hold_after = None
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--resume")
    assert list(server.batches) == ["batch_0"]
    assert np.array_equal(np.load(tmp_path / "out.npy"), [vector_of(text) for text in TEXTS])


def test_resume_refuses_an_input_that_has_changed(server: BatchServer, tmp_path: Path) -> None:
    interrupt(server, tmp_path)
    (tmp_path / "in.txt").write_text("something else\n")
    done = command(server, "embed", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "--resume", code=2)
    assert "the input is not that of the run" in done.stderr


def test_resume_sends_anew_what_the_server_has_forgotten(server: BatchServer, tmp_path: Path) -> None:
    interrupt(server, tmp_path)
    server.batches.clear()
    server.files.clear()
    server.hold_after = None
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--resume")
    assert np.array_equal(np.load(tmp_path / "out.npy"), [vector_of(text) for text in TEXTS])


# -- the other commands -------------------------------------------------------------------------------


def test_list_status_wait_cancel_and_fetch(server: BatchServer, tmp_path: Path) -> None:
    server.hold_after = 2
    command(server, "embed", txt(tmp_path, [*TEXTS, "FAIL"]), "-o", tmp_path / "out.npy", "--no-wait")
    assert "batch_0" in command(server, "list").stdout
    assert "2 of 8, 0 failed" in command(server, "status", "batch_0").stdout
    no_output = command(server, "fetch", "batch_0", "-o", "-", code=1)
    assert "batch_0 has no output: it is in_progress" in no_output.stderr
    server.hold_after = None
    assert "8 of 8, 1 failed" in command(server, "wait", "batch_0", code=1).stdout
    command(server, "fetch", "batch_0", "-o", tmp_path / "raw.jsonl", code=1)
    assert [row["custom_id"] for row in read_jsonl(tmp_path / "raw.jsonl")] == [str(n) for n in range(7)]
    assert [row["custom_id"] for row in read_jsonl(tmp_path / "raw.jsonl.errors.jsonl")] == ["7"]
    assert len(command(server, "fetch", "batch_0", "-o", "-", code=1).stdout.splitlines()) == 8
    assert command(server, "cancel", "batch_0").stdout.strip() == "completed"
    assert "no such batch (404)" in command(server, "status", "batch_9", code=1).stderr


def test_the_model_is_the_servers_embedding_model(server: BatchServer, tmp_path: Path) -> None:
    server.hold_after = 0
    command(server, "embed", txt(tmp_path), "-o", tmp_path / "out.npy", "--no-wait")
    (data,) = server.files.values()
    line = json.loads(data.splitlines()[0])
    body = {"model": MODEL, "input": TEXTS[0], "encoding_format": "base64"}
    assert line == {"custom_id": "0", "method": "POST", "url": "/v1/embeddings", "body": body}
