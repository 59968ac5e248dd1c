"""Large files through a running server: memory, limits, and uploads that end early."""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.chat_client import wait_idle
from tests.stack import FAKE_ENV, Stack
from tests.support import wait_until
from tests.unit.batch_support import line

MIB = 1024 * 1024
HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
)
TAIL = b"\r\n--b--\r\n"
TYPE = {"Content-Type": "multipart/form-data; boundary=b"}
MAX_GROWTH = 48 * MIB


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack({**FAKE_ENV, "LIS_FILES_MAX_BYTES": str(700 * MIB)}) as stack:
        yield stack


def blocks(n: int) -> Iterator[bytes]:
    block = (line("x", input="word " * 200) * 900)[:MIB]
    for _ in range(n):
        yield block.ljust(MIB, b"\n")


def form(n: int) -> Iterator[bytes]:
    yield HEAD
    yield from blocks(n)
    yield TAIL


def kept(stack: Stack) -> list[Path]:
    folder = Path(stack.lis_env["LIS_DATA_DIR"]) / "files"
    return [path for path in folder.rglob("*") if path.is_file()]


class Memory:
    """The highest resident set of the API while the block runs, by its own counter."""

    def __init__(self, stack: Stack) -> None:
        assert stack.api is not None
        self._status = Path(f"/proc/{stack.api.pid}/status")
        self._clear = Path(f"/proc/{stack.api.pid}/clear_refs")
        self._process = psutil.Process(stack.api.pid)
        self.growth = 0

    def __enter__(self) -> "Memory":
        self._clear.write_text("5", encoding="ascii")  # the peak starts from what it is now
        self._before = self._process.memory_info().rss
        return self

    def __exit__(self, *_: Any) -> None:
        peak = next(row for row in self._status.read_text("ascii").splitlines() if row.startswith("VmHWM"))
        self.growth = int(peak.split()[1]) * 1024 - self._before


def test_the_largest_file_goes_up_and_down_in_bounded_memory(stack: Stack) -> None:
    """Beyond LIS_MAX_BODY_BYTES, which is 32 MiB and for other routes."""
    expected = hashlib.sha256()
    for block in blocks(199):
        expected.update(block)
    with stack.client() as client, Memory(stack) as up:
        answer = client.post("/v1/files", content=form(199), headers=TYPE)
    assert answer.status_code == 200
    file = answer.json()
    assert file["bytes"] == 199 * MIB
    found = hashlib.sha256()
    with (
        Memory(stack) as down,
        stack.client() as client,
        client.stream("GET", f"/v1/files/{file['id']}/content") as response,
    ):
        for chunk in response.iter_bytes():
            found.update(chunk)
    assert found.digest() == expected.digest()
    assert (up.growth < MAX_GROWTH, down.growth < MAX_GROWTH) == (True, True), (up.growth, down.growth)
    with stack.client() as client:
        client.delete(f"/v1/files/{file['id']}")
    assert kept(stack) == []


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_larger_file_is_refused_and_leaves_nothing(stack: Stack, is_declared: bool) -> None:
    size = {"Content-Length": str(len(HEAD) + 202 * MIB + len(TAIL))} if is_declared else {}
    with stack.client() as client, Memory(stack) as memory:
        answer = client.post("/v1/files", content=form(202), headers=TYPE | size)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert memory.growth < MAX_GROWTH
    wait_until(lambda: kept(stack) == [], "nothing is left")


def test_the_bound_of_all_files_is_507_until_one_is_deleted(stack: Stack) -> None:
    with stack.client() as client:
        ids = []
        while (answer := client.post("/v1/files", content=form(190), headers=TYPE)).status_code == 200:
            ids.append(answer.json()["id"])
        assert len(ids) == 3
        assert answer.status_code == 507
        assert answer.json()["error"]["code"] == "insufficient_storage"
        client.delete(f"/v1/files/{ids[0]}")
        again = client.post("/v1/files", content=form(190), headers=TYPE)
        assert again.status_code == 200
        for file_id in (*ids[1:], again.json()["id"]):
            assert client.delete(f"/v1/files/{file_id}").status_code == 200


class Gone(Exception):
    pass


def breaking(n: int) -> Iterator[bytes]:
    yield HEAD
    yield from blocks(n)
    raise Gone


def test_a_client_that_leaves_in_the_middle_leaves_nothing(stack: Stack) -> None:
    with stack.client() as client, pytest.raises(Gone):
        client.post("/v1/files", content=breaking(20), headers=TYPE)
    wait_until(lambda: kept(stack) == [], "nothing is left")
    with stack.client() as client:
        assert client.get("/v1/files").json()["data"] == []


def test_an_api_that_is_killed_in_the_middle_leaves_no_file(stack: Stack) -> None:
    assert stack.api is not None
    api = stack.api

    def killing() -> Iterator[bytes]:
        yield HEAD
        yield from blocks(20)
        os.kill(api.pid, signal.SIGKILL)
        yield from blocks(20)

    with stack.client() as client, pytest.raises(httpx.HTTPError):
        client.post("/v1/files", content=killing(), headers=TYPE)
    api.popen.wait()
    stack.start_api()
    stack.wait_ready()
    with stack.client() as client:
        assert client.get("/v1/files").json()["data"] == []
        assert all(path.parent.name == "tmp" for path in kept(stack))


def test_a_chat_is_answered_while_a_large_file_goes_up_and_is_validated(stack: Stack) -> None:
    lines = b"".join(line(str(number), input="word " * 100) for number in range(40_000))

    with stack.client() as client:
        content = HEAD + lines + TAIL
        file = client.post("/v1/files", content=content, headers=TYPE).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        with Memory(stack) as memory:
            batch = client.post("/v1/batches", json=body).json()
            slowest_s = 0.0
            while client.get(f"/v1/batches/{batch['id']}").json()["status"] == "validating":
                slowest_s = max(slowest_s, client.get("/v1/models").elapsed.total_seconds())
        assert slowest_s < 1.0
        assert memory.growth < MAX_GROWTH
        found = client.get(f"/v1/batches/{batch['id']}").json()
        assert found["status"] == "failed"
        assert {error["code"] for error in found["errors"]["data"]} == {"model_not_found"}
    wait_idle(stack)
