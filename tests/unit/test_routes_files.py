"""The routes of files and batches on an app with an in-memory queue, a real storage and no keeper."""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from quart import Quart
from quart.datastructures import FileStorage

from api.app import create_app
from api.batches.records import BatchStatus, LineError, RequestCounts, advanced
from api.batches.service import Batches
from tests.unit.batch_support import line, put
from tests.unit.fake_jobs import FakeJobs
from tests.unit.routes_support import is_error, settings

KEYS = "me:key-me,you:key-you"
BATCH = {"endpoint": "/v1/embeddings", "completion_window": "24h"}


class Client:
    """One key's."""

    def __init__(self, app: Quart, key: str) -> None:
        self._client = app.test_client()
        self._headers = {"Authorization": f"Bearer {key}"}

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        headers = self._headers | options.pop("headers", {})
        return await self._client.open(path, method=method, headers=headers, **options)

    async def upload(self, data: bytes, name: str | None = "in.jsonl", **fields: str) -> Any:
        form = {"purpose": "batch"} | fields
        files = {} if name is None else {"file": FileStorage(io.BytesIO(data), name)}
        return await self.ask("POST", "/v1/files", form=form, files=files)

    async def created(self, **values: Any) -> dict[str, Any]:
        file = await json_of(await self.upload(line("a")))
        answer: dict[str, Any] = await json_of(
            await self.ask("POST", "/v1/batches", json=BATCH | {"input_file_id": file["id"]} | values)
        )
        return answer


async def json_of(response: Any) -> Any:
    assert response.status_code == 200, await response.get_data()
    return json.loads(await response.get_data())


@pytest.fixture
async def batches(tmp_path: Path) -> AsyncIterator[Batches]:
    given = settings(api_key=KEYS, files_url=str(tmp_path / "kept"))
    yield Batches(given, FakeJobs(), client=fakeredis.FakeAsyncRedis())


@pytest.fixture
def app(batches: Batches) -> Quart:
    return create_app(batches.settings, batches.jobs, batches)


@pytest.fixture
def me(app: Quart) -> Client:
    return Client(app, "key-me")


@pytest.fixture
def you(app: Quart) -> Client:
    return Client(app, "key-you")


# -- files ---------------------------------------------------------------------------------------


async def test_a_file_is_uploaded_listed_read_and_deleted(me: Client) -> None:
    data = line("a") + line("b")
    file = await json_of(await me.upload(data))
    assert file | {"id": 0, "created_at": 0, "expires_at": 0} == {
        "id": 0,
        "object": "file",
        "bytes": len(data),
        "created_at": 0,
        "expires_at": 0,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert file["expires_at"] - file["created_at"] == 604_800
    assert await json_of(await me.ask("GET", f"/v1/files/{file['id']}")) == file
    listed = await json_of(await me.ask("GET", "/files?purpose=batch&limit=5&order=asc"))
    assert listed == {
        "object": "list",
        "data": [file],
        "first_id": file["id"],
        "last_id": file["id"],
        "has_more": False,
    }
    content = await me.ask("GET", f"/v1/files/{file['id']}/content")
    assert await content.get_data() == data
    assert content.headers["Content-Length"] == str(len(data))
    deleted = await json_of(await me.ask("DELETE", f"/v1/files/{file['id']}"))
    assert deleted == {"id": file["id"], "object": "file", "deleted": True}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        await is_error(await me.ask(method, f"/v1/files/{file['id']}{path}"), 404, "file_not_found")


BAD_UPLOADS: list[tuple[dict[str, Any], str]] = [
    ({"data": b""}, "file"),
    ({"name": None}, "file"),
    ({"name": "texts.txt"}, "file"),
    ({"purpose": ""}, "purpose"),
    ({"purpose": "nope"}, "purpose"),
    ({"purpose": "fine-tune"}, "purpose"),
    ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, "expires_after.seconds"),
    ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"}, "expires_after.seconds"),
    ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
    ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
    ({"purpose": "batch" * 20_000}, "purpose"),
]


@pytest.mark.parametrize(("given", "param"), BAD_UPLOADS)
async def test_a_bad_upload_is_a_400_that_names_the_field(
    me: Client, batches: Batches, given: dict[str, Any], param: str
) -> None:
    error = await is_error(await me.upload(**({"data": line("a")} | given)), 400)
    assert error["param"] == param
    assert batches.storage.used_bytes() == 0


async def test_a_file_says_how_long_it_is_kept(me: Client) -> None:
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
    file = await json_of(await me.upload(line("a"), **fields))
    assert file["expires_at"] - file["created_at"] == 7200


async def test_a_body_that_is_no_form_or_not_whole_is_told(me: Client, batches: Batches) -> None:
    await is_error(await me.ask("POST", "/v1/files", json={}), 415)
    form = {"Content-Type": "multipart/form-data"}
    await is_error(await me.ask("POST", "/v1/files", data=b"x", headers=form), 400)
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    whole = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\ntext\r\n--b--\r\n'
    for end in range(0, len(whole) - 4, 7):
        await is_error(await me.ask("POST", "/v1/files", data=whole[:end], headers=form), 400)
    twice = whole[:-8] + b"\r\n" + whole
    error = await is_error(await me.ask("POST", "/v1/files", data=twice, headers=form), 400)
    assert error["param"] == "file"
    assert batches.storage.used_bytes() == 0


async def test_the_files_name_is_kept_without_its_folders(me: Client) -> None:
    for name, kept in (("texts/ä b.jsonl", "ä b.jsonl"), ("../../etc/x.jsonl", "x.jsonl"), ("upload", "upload")):
        file = await json_of(await me.upload(line("a"), name=name))
        assert file["filename"] == kept
        content = await me.ask("GET", f"/v1/files/{file['id']}/content")
        assert content.headers["Content-Disposition"].isascii()


async def test_too_large_is_413_and_no_room_is_507(me: Client, batches: Batches) -> None:
    batches.files.max_file_bytes = 1000
    error = await is_error(await me.upload(b"x" * 1001), 413, "request_too_large")
    assert "1000" in error["message"]
    batches.files._usage._max_bytes = 1500
    await json_of(await me.upload(b"x" * 900))
    response = await me.upload(b"x" * 900)
    error = await is_error(response, 507, "insufficient_storage")
    assert error["type"] == "server_error"
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "limit=-1", "order=up"])
async def test_a_bad_query_is_a_400_that_names_it(me: Client, query: str) -> None:
    error = await is_error(await me.ask("GET", f"/v1/files?{query}"), 400)
    assert error["param"] == query.partition("=")[0]


async def test_files_and_batches_are_those_of_the_key(me: Client, you: Client) -> None:
    batch = await me.created()
    file_id = batch["input_file_id"]
    for method, path in (
        ("GET", f"/files/{file_id}"),
        ("GET", f"/files/{file_id}/content"),
        ("DELETE", f"/files/{file_id}"),
        ("GET", f"/batches/{batch['id']}"),
        ("POST", f"/batches/{batch['id']}/cancel"),
    ):
        await is_error(await you.ask(method, path), 404)
    error = await is_error(await you.ask("POST", "/batches", json=BATCH | {"input_file_id": file_id}), 400)
    assert error["param"] == "input_file_id"
    for path in ("/files", "/batches"):
        assert (await json_of(await you.ask("GET", path)))["data"] == []
        assert len((await json_of(await me.ask("GET", path)))["data"]) == 1


# -- batches -------------------------------------------------------------------------------------


async def test_a_batch_is_created_looked_up_and_listed(me: Client) -> None:
    batch = await me.created(
        metadata={"night": "one"}, output_expires_after={"anchor": "created_at", "seconds": 3600}, unknown=1
    )
    nones = {"model", "errors", "output_file_id", "error_file_id", "in_progress_at", "finalizing_at", "completed_at"}
    nones |= {"failed_at", "expired_at", "cancelling_at", "cancelled_at"}
    assert {name for name, value in batch.items() if value is None} == nones
    assert batch["status"] == "validating"
    assert batch["expires_at"] - batch["created_at"] == 86_400
    assert batch["metadata"] == {"night": "one"}
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert await json_of(await me.ask("GET", f"/batches/{batch['id']}")) == batch
    second = await me.created()
    first_page = await json_of(await me.ask("GET", "/v1/batches?limit=1"))
    assert (first_page["data"], first_page["has_more"]) == ([second], True)
    last_page = await json_of(await me.ask("GET", f"/v1/batches?limit=1&after={first_page['last_id']}"))
    assert (last_page["data"], last_page["has_more"]) == ([batch], False)
    await is_error(await me.ask("GET", "/v1/batches?after=batch_nope"), 404, "batch_not_found")


BAD_BATCHES: list[tuple[dict[str, Any], str]] = [
    ({"input_file_id": None}, "input_file_id"),
    ({"input_file_id": "file-nope"}, "input_file_id"),
    ({"input_file_id": 7}, "input_file_id"),
    ({"endpoint": None}, "endpoint"),
    ({"endpoint": "/v1/nope"}, "endpoint"),
    ({"endpoint": "/v1/responses"}, "endpoint"),
    ({"completion_window": None}, "completion_window"),
    ({"completion_window": "1h"}, "completion_window"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {"a" * 65: "x"}}, "metadata"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"output_expires_after": 5}, "output_expires_after"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after.seconds"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}}, "output_expires_after.seconds"),
    ({"output_expires_after": {"seconds": 3600}}, "output_expires_after.anchor"),
]


@pytest.mark.parametrize(("given", "param"), BAD_BATCHES)
async def test_a_bad_batch_is_a_400_that_names_the_field(me: Client, given: dict[str, Any], param: str) -> None:
    file = await json_of(await me.upload(line("a")))
    body = BATCH | {"input_file_id": file["id"]} | given
    error = await is_error(await me.ask("POST", "/v1/batches", json=body), 400)
    assert error["param"] == param


async def test_what_a_batch_wrote_is_no_input(me: Client, batches: Batches) -> None:
    output = await put(batches.files, line("a"), key="me", purpose="batch_output")
    error = await is_error(await me.ask("POST", "/batches", json=BATCH | {"input_file_id": output.id}), 400)
    assert error["param"] == "input_file_id"


async def test_the_input_of_a_batch_stays_until_that_has_ended(me: Client, batches: Batches) -> None:
    batch = await me.created()
    path = f"/files/{batch['input_file_id']}"
    response = await me.ask("DELETE", path)
    await is_error(response, 409, "file_in_use")
    assert response.headers["x-should-retry"] == "false"
    await batches.store.update(batch["id"], lambda b: advanced(b, BatchStatus.FAILED, 0))
    await json_of(await me.ask("DELETE", path))


async def test_a_batch_is_cancelled_once_and_not_after_its_end(me: Client, batches: Batches) -> None:
    batch = await me.created()
    path = f"/batches/{batch['id']}/cancel"
    cancelling = await json_of(await me.ask("POST", path))
    assert (cancelling["status"], cancelling["cancelling_at"] is not None) == ("cancelling", True)
    assert await json_of(await me.ask("POST", path)) == cancelling
    assert await batches.live.is_cancel_asked(batch["id"])
    await batches.store.update(batch["id"], lambda b: advanced(b, BatchStatus.CANCELLED, 0))
    error = await is_error(await me.ask("POST", path), 409, "batch_not_cancellable")
    assert "cancelled" in error["message"]


async def test_errors_and_counts_are_shown(me: Client, batches: Batches) -> None:
    batch = await me.created()
    errors = (LineError(code="invalid_json_line", message="bad", line=3), LineError(code="empty_file", message="none"))
    await batches.store.update(
        batch["id"],
        lambda b: advanced(b, BatchStatus.FAILED, 50, errors=errors, counts=RequestCounts(total=9, failed=2)),
    )
    shown = await json_of(await me.ask("GET", f"/batches/{batch['id']}"))
    assert shown["errors"] == {
        "object": "list",
        "data": [
            {"code": "invalid_json_line", "line": 3, "message": "bad", "param": None},
            {"code": "empty_file", "line": None, "message": "none", "param": None},
        ],
    }
    assert (shown["status"], shown["failed_at"]) == ("failed", 50)
    assert shown["request_counts"] == {"total": 9, "completed": 0, "failed": 2}


async def test_batches_are_shown_while_redis_does_not_answer(me: Client, batches: Batches) -> None:
    batches._client = fakeredis.FakeAsyncRedis(connected=False)
    batch = await me.created()
    assert (await json_of(await me.ask("GET", f"/batches/{batch['id']}")))["status"] == "validating"
    assert (await json_of(await me.ask("POST", f"/batches/{batch['id']}/cancel")))["status"] == "cancelling"
