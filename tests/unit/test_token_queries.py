"""Questions about tokens: bodies, answers, who is asked, and what happens when nobody answers."""

import asyncio
from typing import Any

import fakeredis
import msgspec
import pytest
from quart.typing import TestClientProtocol as Client

from api.job_types import ModelLoading, ModelNotFound, QueueUnavailable, RequestFailed
from api.queries import QueryClient
from api.workers_view import WorkersView
from tasks.contracts import (
    WORKERS_KEY,
    Control,
    ErrorCode,
    GenerateRequest,
    ModelInfo,
    Query,
    Replied,
    WorkerState,
    WorkerStatus,
    control_channel,
    worker_key,
)
from tasks.engines.fake import FakeChatEngine
from tasks.queries import answer
from tests.unit.fake_jobs import CHAT, EMBED, FakeJobs
from tests.unit.routes_support import MESSAGES, is_error, settings

PATHS = ["/tokenize", "/detokenize", "/apply-template", "/chat/completions/input_tokens"]
GOOD: dict[str, Any] = {"content": "a", "tokens": [1], "messages": MESSAGES}
REPLY = {"tokens": [1, 2], "text": "ab", "prompt": "<p>"}

# -- routes -----------------------------------------------------------------------------------------


async def test_tokenize(client: Client, jobs: FakeJobs) -> None:
    jobs.reply = {"tokens": [5, 6]}
    response = await client.post("/tokenize", json={"content": "hi"})

    assert await response.get_json() == {"tokens": [5, 6]}
    assert jobs.queries == [Query(op="tokenize", reply_to="", text="hi")]


async def test_a_piece_that_is_no_whole_character_is_a_list_of_bytes(client: Client, jobs: FakeJobs) -> None:
    jobs.reply = {"tokens": [5, 6], "pieces": [b"a", "é".encode()[:1]]}
    body = {"content": "aé", "with_pieces": True, "add_special": True, "parse_special": False}
    response = await client.post("/v1/tokenize", json=body)

    assert await response.get_json() == {"tokens": [{"id": 5, "piece": "a"}, {"id": 6, "piece": [0xC3]}]}
    (query,) = jobs.queries
    assert (query.add_special, query.parse_special, query.with_pieces) == (True, False, True)


async def test_detokenize(client: Client, jobs: FakeJobs) -> None:
    jobs.reply = {"text": "hi"}
    response = await client.post("/detokenize", json={"tokens": [5, 6]})

    assert await response.get_json() == {"content": "hi"}
    assert jobs.queries[0].tokens == [5, 6]


async def test_apply_template(client: Client, jobs: FakeJobs) -> None:
    jobs.reply = {"prompt": "<user>hi"}
    body = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}}
    response = await client.post("/apply-template", json=body)

    assert await response.get_json() == {"prompt": "<user>hi"}
    request = jobs.queries[0].request
    assert request is not None
    assert (request.model, request.template_kwargs) == (CHAT, {"enable_thinking": False})


async def test_count(client: Client, jobs: FakeJobs) -> None:
    jobs.reply = {"tokens": 12}
    response = await client.post("/v1/chat/completions/input_tokens", json={"model": CHAT, "messages": MESSAGES})

    assert await response.get_json() == {"object": "response.input_tokens", "input_tokens": 12}
    assert jobs.queries[0].op == "count"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": ["a"]}, "content"),
        ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces"),
        ("/tokenize", {"content": "a", "add_special": "no"}, "add_special"),
        ("/tokenize", {"content": "a", "parse_special": []}, "parse_special"),
        ("/tokenize", {"content": "a", "model": 3}, "model"),
        ("/tokenize", {"content": "a", "model": EMBED}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "12"}, "tokens"),
        ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**63]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/chat/completions/input_tokens", {"messages": []}, "messages"),
        ("/chat/completions/input_tokens", {"messages": MESSAGES, "model": 3}, "model"),
        ("/chat/completions/input_tokens", {"messages": MESSAGES, "model": EMBED}, "model"),
    ],
)
async def test_a_bad_field_is_named(client: Client, path: str, body: dict[str, Any], param: str) -> None:
    assert (await is_error(await client.post(path, json=body), 400))["param"] == param


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_key_is_needed_where_one_is_set(locked: Client, jobs: FakeJobs, path: str, prefix: str) -> None:
    jobs.reply = REPLY

    await is_error(await locked.post(prefix + path, json=GOOD), 401, "invalid_api_key")
    response = await locked.post(prefix + path, json=GOOD, headers={"Authorization": "Bearer key"})
    assert response.status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (RequestFailed(ErrorCode.INVALID_REQUEST, "tokens[0] is 9; this model has 5 tokens.", "tokens[0]"), 400, None),
        (RequestFailed(ErrorCode.ENGINE_ERROR, "The engine failed."), 500, "internal_error"),
        (QueueUnavailable("The worker does not answer.", 2.0), 503, "queue_unavailable"),
        (ModelLoading("The model is being loaded.", 5.0), 503, "model_loading"),
        (ModelNotFound("x", [CHAT]), 404, "model_not_found"),
    ],
)
async def test_a_failure_has_its_status(
    client: Client, jobs: FakeJobs, path: str, failure: Exception, status: int, code: str | None
) -> None:
    jobs.reply = failure

    await is_error(await client.post(path, json=GOOD), status, code)


async def test_without_a_known_model_the_configured_one_is_asked_for(client: Client, jobs: FakeJobs) -> None:
    jobs._models = []

    error = await is_error(await client.post("/tokenize", json={"content": "a"}), 404)
    assert settings().model_alias in error["message"]


# -- the engine's side ------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Any:
    engine = FakeChatEngine(settings())
    yield engine
    engine.close()


def generate(*contents: str) -> GenerateRequest:
    messages = [{"role": "user", "content": content} for content in contents]
    return GenerateRequest(id="", model="m", reply_to="", messages=messages)


def test_an_engine_answers_each_question(engine: FakeChatEngine) -> None:
    tokens = answer(engine, "q", Query(op="tokenize", reply_to="a", text="one two", with_pieces=True)).values
    assert tokens["pieces"] == [b"one", b" two"]
    assert (
        answer(engine, "q", Query(op="detokenize", reply_to="a", tokens=tokens["tokens"])).values["text"] == "one two"
    )
    assert answer(engine, "q", Query(op="count", reply_to="a", request=generate("one two"))).values == {"tokens": 3}
    rendered = answer(engine, "q", Query(op="apply_template", reply_to="a", request=generate("one")))
    assert rendered == Replied(id="q", attempt=1, seq=-1, values={"prompt": "user one"})


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        (Query(op="detokenize", reply_to="a", tokens=[10**6]), ErrorCode.INVALID_REQUEST, "tokens[0]"),
        (Query(op="count", reply_to="a"), ErrorCode.INVALID_REQUEST, None),
        (Query(op="newer", reply_to="a"), ErrorCode.INVALID_REQUEST, None),
    ],
)
def test_an_error_is_an_answer(engine: FakeChatEngine, query: Query, code: ErrorCode, param: str | None) -> None:
    replied = answer(engine, "q", query)

    assert replied.error
    assert (replied.code, replied.param) == (code, param)


def test_an_unexpected_fault_says_nothing_of_the_inside() -> None:
    replied = answer(None, "q", Query(op="tokenize", reply_to="a", text="x"))  # type: ignore[arg-type]

    assert replied.code is ErrorCode.ENGINE_ERROR
    assert "NoneType" not in replied.error


# -- the API's side ---------------------------------------------------------------------------------

QUERY = Query(op="tokenize", reply_to="", text="hi")


class Broker:
    """A Redis with two workers' heartbeats, and a QueryClient of it."""

    def __init__(self, timeout_s: float) -> None:
        self.redis: Any = fakeredis.FakeAsyncRedis()
        self.view = WorkersView(self.redis, self._ignore)
        self.queries = QueryClient(self.redis, self.view, "api-1", timeout_s)

    async def _ignore(self, lost: set[tuple[str, str]]) -> None:
        pass

    async def beat(self, *names: str) -> None:
        model = ModelInfo(id=CHAT, kind="chat")
        for name in names:
            state = WorkerState(name=name, boot_id="b", status=WorkerStatus.READY, models=[model])
            await self.redis.set(worker_key(name), msgspec.msgpack.encode(state))
            await self.redis.zadd(WORKERS_KEY, {name: 1})
        await self.view._poll()

    async def listen(self, name: str) -> Any:
        pubsub = self.redis.pubsub(ignore_subscribe_messages=True)
        await pubsub.subscribe(control_channel(name))
        return pubsub


async def heard(pubsub: Any) -> Control:
    while (message := await pubsub.get_message(timeout=1.0)) is None:
        pass
    return msgspec.msgpack.decode(message["data"], type=Control)


async def test_the_answer_goes_to_who_asked() -> None:
    broker = Broker(5.0)
    await broker.beat("w1", "w2")
    worker = await broker.listen("w2")  # w1 does not listen
    asked = [asyncio.create_task(broker.queries.ask(CHAT, QUERY)) for _ in range(2)]
    controls = [await heard(worker), await heard(worker)]
    for number, control in reversed(list(enumerate(controls))):
        broker.queries.on_replied(Replied(control.id, 1, -1, {"tokens": [number]}))
    broker.queries.on_replied(Replied("query-unknown", 1, -1, {}))

    assert [control.op for control in controls] == ["query", "query"]
    assert controls[0].query == msgspec.structs.replace(QUERY, reply_to="api-1")
    assert await asyncio.gather(*asked) == [{"tokens": [0]}, {"tokens": [1]}]
    assert not broker.queries._asked


async def test_an_error_s_answer_raises() -> None:
    broker = Broker(5.0)
    await broker.beat("w1")
    worker = await broker.listen("w1")
    asked = asyncio.create_task(broker.queries.ask(CHAT, QUERY))
    control = await heard(worker)
    broker.queries.on_replied(Replied(control.id, 1, -1, {}, "no", "tokens[0]"))

    with pytest.raises(RequestFailed, match="no"):
        await asked


async def test_a_worker_that_is_silent_is_given_up() -> None:
    broker = Broker(0.05)
    await broker.beat("w1")
    await broker.listen("w1")

    with pytest.raises(QueueUnavailable, match="does not answer"):
        await broker.queries.ask(CHAT, QUERY)
    assert not broker.queries._asked


async def test_a_worker_that_does_not_listen_is_not_waited_for() -> None:
    broker = Broker(60.0)
    await broker.beat("w1")

    with pytest.raises(QueueUnavailable, match="does not answer"):
        await asyncio.wait_for(broker.queries.ask(CHAT, QUERY), 5.0)


async def test_without_a_ready_worker_the_refusal_is_chat_s() -> None:
    broker = Broker(5.0)
    await broker.view._poll()

    with pytest.raises(ModelLoading):
        await broker.queries.ask(CHAT, QUERY)
