"""`client.files` and `client.batches` of the SDK, unchanged."""

import io
import json
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai._types import FileTypes
from openai.types import Batch, FileObject

from tests.stack import CHAT, EMBED
from tests.support import wait_until

EMBEDDINGS = "/v1/embeddings"


def lines(*ids: str, model: str = EMBED) -> bytes:
    rows = [
        {"custom_id": name, "method": "POST", "url": EMBEDDINGS, "body": {"model": model, "input": f"text {name}"}}
        for name in ids
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def upload(client: OpenAI, data: bytes) -> FileObject:
    return client.files.create(file=("in.jsonl", data), purpose="batch")


def create(client: OpenAI, file_id: str) -> Batch:
    return client.batches.create(
        input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h", metadata={"test": "sdk"}
    )


def settled(client: OpenAI, batch_id: str) -> Batch:
    """Once it is validated."""
    wait_until(lambda: client.batches.retrieve(batch_id).status != "validating", "the batch is validated", 30)
    return client.batches.retrieve(batch_id)


@pytest.mark.parametrize("kind", ["bytes", "path", "stream"])
def test_a_file_goes_up_in_every_way_and_comes_back(client: OpenAI, tmp_path: Path, kind: str) -> None:
    data = lines("a", "b")
    path = tmp_path / "texts.jsonl"
    path.write_bytes(data)
    ways: dict[str, FileTypes] = {"bytes": data, "path": path, "stream": io.BytesIO(data)}
    file = client.files.create(
        file=ways[kind], purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.object, file.bytes, file.purpose, file.status) == ("file", len(data), "batch", "processed")
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == data
    with client.files.with_streaming_response.content(file.id) as response:
        assert b"".join(response.iter_bytes()) == data
    assert client.files.wait_for_processing(file.id).status == "processed"
    gone = client.files.delete(file.id)
    assert (gone.id, gone.deleted, gone.object) == (file.id, True, "file")
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_listing_goes_through_all_pages(client: OpenAI) -> None:
    files = [upload(client, lines("a")) for _ in range(5)]
    wanted = {file.id for file in files}
    found = [file.id for file in client.files.list(purpose="batch", limit=2) if file.id in wanted]
    assert found == [file.id for file in reversed(files)]
    assert client.files.list(purpose="batch", order="asc", limit=1).data[0].id <= min(wanted)
    for file in files:
        client.files.delete(file.id)


def test_a_bad_upload_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as info:
        client.files.create(file=("in.jsonl", b""), purpose="batch")
    assert info.value.param == "file"
    with pytest.raises(openai.BadRequestError) as info:
        client.files.create(file=("in.jsonl", lines("a")), purpose="fine-tune")
    assert info.value.param == "purpose"


def test_a_batch_is_created_validated_found_and_cancelled(client: OpenAI) -> None:
    file = upload(client, lines(*map(str, range(2000))))
    batch = create(client, file.id)
    assert (batch.object, batch.endpoint, batch.input_file_id) == ("batch", EMBEDDINGS, file.id)
    assert (batch.completion_window, batch.metadata) == ("24h", {"test": "sdk"})
    assert batch.expires_at == batch.created_at + 86_400
    assert batch.request_counts is not None
    assert batch.usage is not None
    assert any(found.id == batch.id for found in client.batches.list(limit=1))
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    wait_until(lambda: client.batches.retrieve(batch.id).status == "cancelled", "the batch is cancelled", 60)
    ended = client.batches.retrieve(batch.id)
    assert ended.cancelling_at is not None
    assert ended.cancelled_at is not None
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    client.files.delete(file.id)


def test_a_bad_file_fails_with_its_lines(client: OpenAI) -> None:
    file = upload(client, lines("a", "b") + b"not JSON\n" + lines("a"))
    batch = settled(client, create(client, file.id).id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert [(error.line, error.code) for error in batch.errors.data or []] == [
        (3, "invalid_json_line"),
        (4, "duplicate_custom_id"),
    ]


@pytest.mark.parametrize("model", ["no-such-model", CHAT])
def test_a_model_that_makes_no_vectors_fails_the_batch(client: OpenAI, model: str) -> None:
    batch = settled(client, create(client, upload(client, lines("a", model=model)).id).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [error.param for error in batch.errors.data or []] == ["body.model"]


def test_what_is_not_there_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as info:
        create(client, "file-nope")
    assert info.value.param == "input_file_id"
    for ask in (client.batches.retrieve, client.batches.cancel, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask("nope")


async def test_the_async_client_does_the_same(async_client: AsyncOpenAI) -> None:
    file = await async_client.files.create(file=("in.jsonl", lines("a")), purpose="batch")
    assert file.id in [found.id async for found in async_client.files.list(limit=2)]
    content = await async_client.files.content(file.id)
    assert content.read() == lines("a")
    await async_client.files.delete(file.id)
