import asyncio
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from api.batches.file_store import FileStore
from api.batches.records import LineError
from api.batches.validation import MAX_ERRORS, MAX_LINES, Findings, LineReader, Validator
from api.job_types import ModelLoading
from tasks.contracts import ModelInfo
from tests.unit.batch_support import batch_of, line, put, storage_of
from tests.unit.fake_jobs import CHAT, EMBED, FakeJobs
from tests.unit.routes_support import settings


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(storage_of("local", tmp_path), 1000)


async def check(files: FileStore, data: bytes, *, endpoint: str = "/v1/embeddings", max_lines: int = 100) -> Findings:
    record = await put(files, data)
    validator = Validator(settings(embedding_max_inputs=3), FakeJobs(), files, max_lines)
    return await validator.validate(batch_of(record.id, endpoint=endpoint))


def places(found: Findings) -> list[tuple[str, int | None, str | None]]:
    return [(error.code, error.line, error.param) for error in found.errors]


@pytest.mark.parametrize(
    "edit", [bytes, lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")]
)
async def test_a_good_file_has_its_lines_and_its_model(files: FileStore, edit: Any) -> None:
    found = await check(files, edit(line("a") + b"\n" + line("b") + b"  \n" + line("c")))
    assert found[:3] == (EMBED, 3, ())


async def test_every_bad_line_is_told_with_its_number(files: FileStore) -> None:
    data = b"".join(
        [
            line("good"),
            b"not JSON\n",
            b"\n",
            b'{"custom_id": "no method"}\n',
            line("url", url="/v1/nope"),
            line("").replace(b'"custom_id": "", ', b""),
            line("input", input=None),
            line("stream", stream=True),
            line("good"),
            line("other", model="another"),
            line("last"),
        ]
    )
    assert places(await check(files, data)) == [
        ("invalid_json_line", 2, None),
        ("missing_required_parameter", 4, "method"),
        ("invalid_url", 5, "url"),
        ("missing_required_parameter", 6, "custom_id"),
        ("invalid_request", 7, "body.input"),
        ("invalid_request", 8, "body.stream"),
        ("duplicate_custom_id", 9, "custom_id"),
        ("mismatched_model", 10, "body.model"),
    ]


@pytest.mark.parametrize("data", [b"\n", b"\r\n \n", b"\xef\xbb\xbf"])
async def test_a_file_without_lines_fails(files: FileStore, data: bytes) -> None:
    assert places(await check(files, data)) == [("empty_file", None, None)]


async def test_so_many_lines_and_no_more(files: FileStore) -> None:
    lines = b"".join(line(str(number)) for number in range(101))
    assert (await check(files, lines.rstrip(b"\n"), max_lines=101)).errors == ()
    assert places(await check(files, lines, max_lines=100)) == [("too_many_lines", 101, None)]


async def test_the_first_errors_are_listed(files: FileStore) -> None:
    found = await check(files, b"x\n" * (MAX_ERRORS + 50), max_lines=1000)
    assert [error.line for error in found.errors] == list(range(1, MAX_ERRORS + 1))


async def test_a_model_that_is_not_served_is_an_error_of_the_line_that_names_it(files: FileStore) -> None:
    assert places(await check(files, b"\n" + line("a", model="nope"))) == [("model_not_found", 2, "body.model")]
    assert places(await check(files, line("a", model=CHAT))) == [("invalid_request", 1, "body.model")]


async def test_dimensions_beyond_the_model_are_an_error(files: FileStore) -> None:
    data = line("a", dimensions=4) + line("b", dimensions=9) + line("c", dimensions=8)
    assert places(await check(files, data)) == [("invalid_request", 2, "body.dimensions")]


async def test_a_file_that_is_gone_fails(files: FileStore) -> None:
    found = await Validator(settings(), FakeJobs(), files).validate(batch_of("file-" + "0" * 24))
    assert [error.code for error in found.errors] == ["file_not_found"]


async def test_without_a_worker_the_file_is_read_once_and_the_model_is_asked_for_again(files: FileStore) -> None:
    class Loading(FakeJobs):
        is_ready = False

        def require(self, model: str, kind: str) -> ModelInfo:
            if not self.is_ready:
                raise ModelLoading("loading")
            return super().require(model, kind)

    jobs = Loading()
    record = await put(files, line("a"))
    batch = batch_of(record.id)
    validator = Validator(settings(), jobs, files)
    with pytest.raises(ModelLoading):
        await validator.validate(batch)
    await files.delete(record.id)
    jobs.is_ready = True
    assert (await validator.validate(batch)).errors == ()


async def test_memory_is_bounded_and_the_loop_goes_on_meanwhile(files: FileStore) -> None:
    """As many lines as a file may have."""
    text = "word " * 100
    record = await put(files, b"".join(line(str(number), input=text) for number in range(MAX_LINES)))
    assert record.bytes > 25_000_000
    longest_s, is_done = 0.0, False

    async def tick() -> None:
        nonlocal longest_s
        while not is_done:
            before_s = time.monotonic()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.monotonic() - before_s)

    ticking = asyncio.create_task(tick())
    tracemalloc.start()
    try:
        found = await Validator(settings(), FakeJobs(), files).validate(batch_of(record.id))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        is_done = True
        await ticking
    assert (found.total, found.errors) == (MAX_LINES, ())
    assert peak < 20 * 1024 * 1024
    assert longest_s < 1.0


async def test_reading_ends_when_nobody_waits_for_it(files: FileStore) -> None:
    record = await put(files, b"".join(line(str(number)) for number in range(50)))
    is_over = threading.Event()
    is_over.set()
    found = LineReader("/v1/embeddings", settings(), 100).read(files, record.id, is_over)
    assert found.total == 1


def test_errors_are_plain_data() -> None:
    assert LineError(code="c", message="m") == LineError(code="c", message="m", line=None, param=None)
