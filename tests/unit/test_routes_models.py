"""/v1/models, /health, and the model field of every route."""

from typing import Any

import msgspec
import pytest
from quart.typing import TestClientProtocol as Client

from api.app import create_app
from api.job_types import ModelLoading
from tasks.contracts import WorkerStatus
from tests.unit.fake_jobs import CHAT, EMBED, MODELS, FakeJobs, worker
from tests.unit.routes_support import POSTS, is_error, settings


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_unknown_model(client: Client, jobs: FakeJobs, path: str, body: Any, stream: bool) -> None:
    error = await is_error(await client.post(path, json=body | {"model": "no-such", "stream": stream}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert CHAT in error["message"]
    assert not jobs.submitted


@pytest.mark.parametrize("model", [None, "", 5])
@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_missing_model(client: Client, path: str, body: Any, model: Any) -> None:
    assert (await is_error(await client.post(path, json=body | {"model": model}), 400))["param"] == "model"


@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_model_of_the_other_kind(client: Client, path: str, body: Any) -> None:
    other = CHAT if body["model"] == EMBED else EMBED
    assert (await is_error(await client.post(path, json=body | {"model": other}), 400))["param"] == "model"


async def test_list_of_models(client: Client) -> None:
    body = await (await client.get("/v1/models")).get_json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == [CHAT, EMBED]
    for model in body["data"]:
        assert (model["object"], model["owned_by"]) == ("model", "local")
        assert isinstance(model["created"], int)
    assert body["data"][0]["meta"] == {"kind": "chat", "n_ctx": 2048}
    assert body["data"][1]["meta"] == {"kind": "embedding", "n_ctx": 512, "n_embd": 8}


@pytest.mark.parametrize("model", [CHAT, EMBED])
async def test_one_model(client: Client, model: str) -> None:
    assert (await (await client.get(f"/v1/models/{model}")).get_json())["id"] == model


async def test_one_model_that_is_not_there(client: Client, jobs: FakeJobs) -> None:
    await is_error(await client.get("/v1/models/no/such"), 404, "model_not_found")
    jobs.refusal = ModelLoading("The model is loading.", 5)
    await is_error(await client.get("/v1/models/no/such"), 503, "model_loading")


async def test_list_without_a_worker_is_empty() -> None:
    client = create_app(settings(), FakeJobs(models=[], workers=[])).test_client()
    assert (await (await client.get("/v1/models")).get_json())["data"] == []


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (WorkerStatus.DOWNLOADING, "42%"),
        (WorkerStatus.LOADING, "what it does"),
        (WorkerStatus.FAILED, "what it does"),
        (WorkerStatus.DRAINING, "stopping"),
        (None, "No worker"),
    ],
)
async def test_health_says_why_no_chat_would_be_taken(status: WorkerStatus | None, says: str) -> None:
    workers = [worker(status, "what it does", 0.42)] if status else []
    response = await create_app(settings(), FakeJobs(models=[], workers=workers)).test_client().get("/health")
    assert response.status_code == 503
    assert 1 <= int(response.headers["Retry-After"]) <= 60
    body = await response.get_json()
    assert body["status"] != "ok"
    assert says in body["message"]
    assert [w["status"] for w in body["workers"]] == ([status.value] if status else [])


async def test_health_without_redis(client: Client, jobs: FakeJobs) -> None:
    jobs.reachable = False
    response = await client.get("/health")
    assert (response.status_code, (await response.get_json())["status"]) == (503, "queue_unavailable")


async def test_health_while_only_embeddings_are_served() -> None:
    embedder = msgspec.structs.replace(worker(message="loading"), models=MODELS[1:])
    client = create_app(settings(), FakeJobs(models=MODELS[1:], workers=[embedder])).test_client()
    assert (await client.get("/health")).status_code == 503


async def test_health_when_all_is_well(client: Client) -> None:
    response = await client.get("/health")
    assert response.status_code == 200
    assert (await response.get_json())["models"] == [CHAT, EMBED]
