"""Inputs larger than one batch: how they are cut, sent and put together, and what a run keeps in memory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from api.batch_command import embed_run
from api.batch_command.embed_run import Run
from api.batch_command.http_client import BatchApi
from api.batch_command.inputs import Source
from api.batch_command.job import Job
from api.batch_command.problems import ServerError
from api.batch_command.request_files import Limits
from tests.batch_server import KEY, MODEL, BatchServer, vector_of

TEXTS = [f"text {number}" for number in range(20)]


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as server:
        yield server


def job(folder: Path, limits: Limits, *, detach: bool = False) -> Job:
    path = folder / "in.txt"
    path.write_text("\n".join(TEXTS), "utf-8")
    return Job(Source(path=path), folder / "out.npy", MODEL, None, detach, limits)


def finish(server: BatchServer, job: Job, resume: bool = False) -> int:
    api = BatchApi(server.url, KEY, print)
    run = Run(job, api, resume)
    try:
        return run.finish()
    finally:
        run.close()
        api.close()


def send_all(server: BatchServer, job: Job, resume: bool = False) -> None:
    api = BatchApi(server.url, KEY, print)
    run = Run(job, api, resume)
    run.send_all()
    run.close()
    api.close()


def sizes(server: BatchServer) -> list[int]:
    return [batch["request_counts"]["total"] for batch in server.batches.values()]


def is_right(job: Job) -> bool:
    return np.array_equal(np.load(job.output), [vector_of(text) for text in TEXTS])


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(lines=6), [6, 6, 6, 2]),
        (Limits(lines=20), [20]),
        (Limits(lines=1), [1] * 20),
        (Limits(bytes=600), [4] * 5),
        (Limits(bytes=1), [1] * 20),
    ],
)
def test_the_input_is_cut_by_lines_and_bytes(
    server: BatchServer, tmp_path: Path, limits: Limits, expected: list[int]
) -> None:
    work = job(tmp_path, limits)
    assert finish(server, work) == 0
    assert sizes(server) == expected
    assert is_right(work)


def test_only_a_few_batches_are_on_the_server_at_a_time(server: BatchServer, tmp_path: Path) -> None:
    assert finish(server, job(tmp_path, Limits(lines=1))) == 0
    assert server.max_seen <= embed_run.IN_FLIGHT + 1, "inputs of those that run, and one output"


def test_a_full_server_gets_the_rest_when_it_has_room(server: BatchServer, tmp_path: Path) -> None:
    server.max_files = 2
    work = job(tmp_path, Limits(lines=3), detach=True)
    assert finish(server, work) == 0
    assert is_right(work)
    assert server.max_seen <= 3


def test_a_server_that_is_full_of_others_files_is_told(server: BatchServer, tmp_path: Path) -> None:
    server.max_files = 0
    with pytest.raises(ServerError, match="the disk is full"):
        finish(server, job(tmp_path, Limits(lines=3)))


def test_no_further_batch_is_sent_when_one_was_refused(server: BatchServer, tmp_path: Path) -> None:
    server.refuse_with = "no such model"
    with pytest.raises(Exception, match="no such model"):
        finish(server, job(tmp_path, Limits(lines=1)))
    assert len(server.batches) == embed_run.IN_FLIGHT


def test_resume_fills_the_gaps_between_batches_that_still_run(server: BatchServer, tmp_path: Path) -> None:
    """Of five batches the second was cancelled by somebody, with one answer of four, and the last was lost."""
    work = job(tmp_path, Limits(lines=4), detach=True)
    server.hold_after = 1
    send_all(server, work)
    server.batches["batch_1"]["status"] = "cancelling"
    server.advance(server.batches["batch_1"])
    del server.batches["batch_4"]
    send_all(server, work, resume=True)
    server.hold_after = None
    assert finish(server, work, resume=True) == 0
    assert is_right(work)
    assert sizes(server)[-2:] == [3, 4], "the rest of the second, and the last, each in a batch of its own"


MEASURE = """
import sys
from pathlib import Path
from api.batch_command.embed_run import Run
from api.batch_command.http_client import BatchApi
from api.batch_command.inputs import Source
from api.batch_command.job import Job
from api.batch_command.request_files import Limits
url, key, model, folder, name = sys.argv[1:]
path = Path(folder)
job = Job(Source(path=path / name), path / f"{name}.jsonl", model, None, False, Limits(lines=500))
assert Run(job, BatchApi(url, key, print), False).finish() == 0
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_the_input(server: BatchServer, tmp_path: Path) -> None:
    """Texts of 10 kB: 1 MB of them against 50 MB. (`ru_maxrss` would begin with that of this process.)"""

    def peak_kib(lines: int) -> int:
        name = f"{lines}.txt"
        with (tmp_path / name).open("w") as out:
            out.writelines(f"{number} " + "word " * 2000 + "\n" for number in range(lines))
        command = [sys.executable, "-c", MEASURE, server.url, KEY, MODEL, str(tmp_path), name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1])

    assert peak_kib(5000) - peak_kib(100) < 10 * 1024
