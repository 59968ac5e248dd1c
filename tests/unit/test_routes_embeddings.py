"""/v1/embeddings."""

import pytest
from quart.typing import TestClientProtocol as Client

from api.app import create_app
from api.job_types import RequestFailed
from tasks.contracts import ErrorCode
from tests.unit.fake_jobs import EMBED, FakeJobs
from tests.unit.routes_support import is_error, settings


async def test_embeddings(client: Client, jobs: FakeJobs) -> None:
    response = await client.post("/v1/embeddings", json={"model": EMBED, "input": ["a", "b"], "user": "u"})
    body = await response.get_json()
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert body["model"] == EMBED
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert jobs.embedded == [["a", "b"]]
    assert response.headers["x-request-id"].startswith("embd-")
    assert response.headers["x-queue-wait-ms"] == "8"
    assert "x-truncated-inputs" not in response.headers


async def test_cut_inputs_are_named(client: Client, jobs: FakeJobs) -> None:
    jobs.truncated = [0, 2]
    response = await client.post("/v1/embeddings", json={"model": EMBED, "input": ["a", "b", "c"]})
    assert response.headers["x-truncated-inputs"] == "0,2"


@pytest.mark.parametrize(
    ("mrl", "dimensions", "status"), [(True, 4, 200), (True, 9, 400), (False, 4, 400), (False, 8, 200)]
)
async def test_dimensions(jobs: FakeJobs, mrl: bool, dimensions: int, status: int) -> None:
    client = create_app(settings(embedding_mrl=mrl), jobs).test_client()
    response = await client.post("/v1/embeddings", json={"model": EMBED, "input": "a", "dimensions": dimensions})
    assert response.status_code == status
    assert bool(jobs.embedded) is (status == 200)


async def test_failed_input_is_named(client: Client, jobs: FakeJobs) -> None:
    jobs.embed_steps = [RequestFailed(ErrorCode.ENGINE_ERROR, "input[1] has no finite vector.", "input[1]")]
    error = await is_error(await client.post("/v1/embeddings", json={"model": EMBED, "input": ["a", "b"]}), 500)
    assert error["param"] == "input[1]"
