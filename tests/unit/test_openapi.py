"""The description is that of the app: its routes, the fields its readers ask for, the answers it gives."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
from quart import Quart

from api.app import create_app
from api.openapi import document
from api.openapi.bodies import bodies
from api.protocol.chat import parse_chat
from api.protocol.completions import parse_completion
from api.protocol.embeddings import parse_embeddings
from api.protocol.fields import InvalidRequest
from api.protocol.responses_fields import MOVED, REFUSED
from api.protocol.responses_request import parse_response
from api.protocol.tokens import parse_detokenize, parse_tokenize
from api.protocol.unsupported import NEVER_CHAT
from tests.unit.fake_jobs import CHAT, EMBED, FakeJobs, Step, call, delta, finished, reasoning, scored
from tests.unit.routes_support import MESSAGES, chunks, read, settings

Json = dict[str, Any]

DOCUMENT = document(settings())
METHODS = {"GET", "POST", "DELETE", "PUT", "PATCH"}


def operations() -> Iterator[tuple[str, str]]:
    for path, methods in DOCUMENT["paths"].items():
        for method in methods:
            yield method.upper(), path


def test_the_description_is_valid_openapi() -> None:
    openapi_spec_validator.validate(DOCUMENT)


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_every_route_is_described_and_nothing_else(prefix: str) -> None:
    app = create_app(settings(), FakeJobs())
    routes = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule.removeprefix("/v1")))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) & METHODS
        if rule.rule.startswith("/v1/") == bool(prefix)
    }
    assert routes == set(operations())


def test_operation_names_are_unique() -> None:
    names = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


# -- fields --------------------------------------------------------------------------------------


class Asked(dict[str, Any]):
    """A body that notes which members are looked at."""

    def __init__(self, values: Json) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)


#: read elsewhere: with the lane and the deadline
QUEUE_FIELDS = {"service_tier", "deadline_ms"}
OLDER_CHAT_FIELDS = {
    *NEVER_CHAT,
    "add_generation_prompt",
    "function_call",
    "modalities",
}  # refused when they ask for something


@pytest.mark.parametrize(
    ("parse", "values", "name", "refused"),
    [
        (
            lambda body: parse_chat(body, 8),
            {"model": "m", "messages": MESSAGES},
            "ChatCompletionRequest",
            OLDER_CHAT_FIELDS,
        ),
        (lambda body: parse_completion(body, 8), {"model": "m", "prompt": "x"}, "CompletionRequest", set()),
        (lambda body: parse_embeddings(body, 8), {"model": "m", "input": "x"}, "EmbeddingsRequest", set()),
        (parse_tokenize, {"content": "x"}, "TokenizeRequest", set()),
        (parse_detokenize, {"tokens": [1]}, "DetokenizeRequest", set()),
    ],
)
def test_the_fields_are_those_that_the_reader_asks_for(
    parse: Callable[[Json], object], values: Json, name: str, refused: set[str]
) -> None:
    asked = Asked(values)
    parse(asked)
    described = set(bodies(settings())[name]["properties"])
    assert described - QUEUE_FIELDS == asked.names - refused


def test_the_fields_of_a_response_are_those_that_its_reader_asks_for() -> None:
    asked = Asked({"model": "m", "input": "x"})
    parse_response(asked)
    described = set(bodies(settings())["ResponseRequest"]["properties"])
    refused = {*MOVED, *REFUSED, "n"} - {"store", "background"}
    assert asked.names - refused <= described


def values_beside(schema: Json) -> Iterator[Any]:
    """Values that a single field's schema does not allow."""
    kinds = schema.get("type", [])
    if "number" in kinds or "integer" in kinds:
        yield "text"
        if "minimum" in schema:
            yield schema["minimum"] - 1
        if "maximum" in schema:
            yield schema["maximum"] + 1
    if "boolean" in kinds or "array" in kinds or "object" in kinds:
        yield "text"
    if "string" in kinds:
        yield 5


PARSERS: list[tuple[str, Callable[[Json], object], Json]] = [
    ("ChatCompletionRequest", lambda body: parse_chat(body, 8), {"model": "m", "messages": MESSAGES}),
    ("CompletionRequest", lambda body: parse_completion(body, 8), {"model": "m", "prompt": "x"}),
    ("ResponseRequest", parse_response, {"model": "m", "input": "x"}),
]


@pytest.mark.parametrize(("name", "parse", "values"), PARSERS)
def test_what_a_schema_excludes_is_refused(name: str, parse: Callable[[Json], object], values: Json) -> None:
    for field, schema in bodies(settings(max_n=8))[name]["properties"].items():
        for value in values_beside(schema) if field not in QUEUE_FIELDS else ():
            with pytest.raises(InvalidRequest) as refusal:
                parse({**values, field: value})
            assert (refusal.value.param or "").startswith(field)


# -- answers -------------------------------------------------------------------------------------


def closed(schema: Any) -> Any:
    """The schema without room for members that are not described."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if isinstance(inner.get("properties"), dict) and inner.get("type") == "object":
        inner.setdefault("additionalProperties", False)
    return inner


COMPONENTS = {"components": {"schemas": closed(DOCUMENT["components"]["schemas"])}}


def check(value: Any, schema: Json) -> None:
    jsonschema.Draft202012Validator(COMPONENTS | closed(schema)).validate(value)


def check_answer(method: str, path: str, status: int, headers: Any, data: bytes | str) -> None:
    """`path`: as the description has it."""
    answer = DOCUMENT["paths"][path][method.lower()]["responses"][str(status)]
    if "$ref" in answer:
        answer = DOCUMENT["components"]["responses"][answer["$ref"].rsplit("/", 1)[1]]
    for name in answer["headers"]:
        described = DOCUMENT["components"]["headers"][name]
        given = headers.get(name)
        assert given is not None or not described.get("required"), name
        if given is not None and described["schema"].get("type") == "integer":
            check(int(given), described["schema"])
    check(json.loads(data), answer["content"]["application/json"]["schema"])


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CHAT_BODY: Json = {"model": CHAT, "messages": MESSAGES}
LOGGED: list[Step] = [scored(("a", -0.1), ("b", -0.2)), finished()]


@pytest.mark.parametrize(
    ("path", "body", "running"),
    [
        ("/chat/completions", CHAT_BODY, None),
        ("/chat/completions", CHAT_BODY | {"logprobs": True, "top_logprobs": 2}, LOGGED),
        ("/chat/completions", CHAT_BODY | {"tools": TOOLS}, [reasoning("hm"), call(0, "f", "{}"), finished()]),
        ("/chat/completions", CHAT_BODY | {"service_tier": "flex"}, [delta("x"), finished()]),
        ("/completions", {"model": CHAT, "prompt": "x"}, None),
        ("/completions", {"model": CHAT, "prompt": "x", "logprobs": 2}, LOGGED),
        ("/responses", {"model": CHAT, "input": "x"}, None),
        ("/responses", {"model": CHAT, "input": "x", "top_logprobs": 2}, LOGGED),
        (
            "/responses",
            {"model": CHAT, "input": "x", "tools": [{"type": "function", "name": "f"}], "metadata": {"a": "b"}},
            [reasoning("hm"), call(0, "f", "{}"), finished()],
        ),
        ("/embeddings", {"model": EMBED, "input": ["x", "y"]}, None),
        ("/embeddings", {"model": EMBED, "input": "x", "encoding_format": "base64"}, None),
    ],
)
async def test_answers_are_as_described(path: str, body: Json, running: list[Step] | None) -> None:
    jobs = FakeJobs()
    jobs.running = running or jobs.running
    client = create_app(settings(), jobs).test_client()
    response = await client.post("/v1" + path, json=body)
    assert response.status_code == 200
    check_answer("POST", path, 200, response.headers, await response.get_data())


@pytest.mark.parametrize(
    ("path", "body", "reply"),
    [
        ("/tokenize", {"content": "x"}, {"tokens": [1, 2]}),
        ("/tokenize", {"content": "x", "with_pieces": True}, {"tokens": [1, 2], "pieces": [b"x", b"\xff"]}),
        ("/detokenize", {"tokens": [1]}, {"text": "x"}),
        ("/apply-template", CHAT_BODY, {"prompt": "x"}),
        ("/chat/completions/input_tokens", CHAT_BODY, {"tokens": 3}),
        ("/responses/input_tokens", {"model": CHAT, "input": "x"}, {"tokens": 3}),
    ],
)
async def test_answers_to_questions_are_as_described(path: str, body: Json, reply: Json) -> None:
    jobs = FakeJobs()
    jobs.reply = reply
    response = await create_app(settings(), jobs).test_client().post(path, json=body)
    assert response.status_code == 200
    check_answer("POST", path, 200, response.headers, await response.get_data())


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/health", "/health"),
        ("/models", "/v1/models"),
        ("/models/{model_id}", f"/v1/models/{CHAT}"),
        ("/models/{model_id}", f"/v1/models/{EMBED}"),
        ("/queue", "/v1/queue"),
        ("/openapi.json", "/openapi.json"),
    ],
)
async def test_what_is_looked_up_is_as_described(app: Quart, path: str, url: str) -> None:
    response = await app.test_client().get(url)
    assert response.status_code == 200
    check_answer("GET", path, 200, response.headers, await response.get_data())


@pytest.mark.parametrize(
    ("method", "path", "url", "headers", "status"),
    [
        ("GET", "/models/{model_id}", "/v1/models/none", {}, 404),
        ("POST", "/chat/completions", "/v1/chat/completions", {}, 400),
        ("POST", "/chat/completions", "/v1/chat/completions", {"Content-Type": "text/plain"}, 415),
        ("GET", "/responses/{response_id}", "/v1/responses/r", {}, 404),
        ("DELETE", "/responses/{response_id}", "/v1/responses/r", {}, 404),
    ],
)
async def test_errors_are_as_described(
    app: Quart, method: str, path: str, url: str, headers: dict[str, str], status: int
) -> None:
    client: Any = app.test_client()
    response = await client.open(url, method=method, headers=headers, data=b"[]" if method == "POST" else b"")
    assert response.status_code == status
    check_answer(method, path, status, response.headers, await response.get_data())


async def test_the_description_needs_the_key_and_a_refusal_is_as_described() -> None:
    client = create_app(settings(api_key="secret"), FakeJobs()).test_client()
    refused = await client.get("/openapi.json")
    assert refused.status_code == 401
    check_answer("GET", "/openapi.json", 401, refused.headers, await refused.get_data())
    answer = await client.get("/v1/openapi.json", headers={"Authorization": "Bearer secret"})
    assert json.loads(await answer.get_data()) == json.loads(json.dumps(DOCUMENT))


async def test_a_busy_answer_and_bad_health_are_as_described() -> None:
    client = create_app(settings(), FakeJobs(workers=[])).test_client()
    response = await client.get("/health")
    assert response.status_code == 503
    assert 1 <= int(response.headers["Retry-After"]) <= 60
    check_answer("GET", "/health", 503, response.headers, await response.get_data())


@pytest.mark.parametrize(
    ("path", "body", "schema"),
    [
        ("/v1/chat/completions", CHAT_BODY | {"logprobs": True, "tools": TOOLS}, "ChatCompletionChunk"),
        ("/v1/completions", {"model": CHAT, "prompt": "x", "logprobs": 1, "echo": False}, "CompletionChunk"),
    ],
)
async def test_chunks_are_as_described(path: str, body: Json, schema: str) -> None:
    jobs = FakeJobs()
    jobs.running = [reasoning("hm"), *LOGGED[:1], call(0, "f", "{}"), finished()]
    client = create_app(settings(), jobs).test_client()
    response = await client.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    found = chunks(await read(response))
    assert len(found) > 3
    for chunk in found:
        check(chunk, {"$ref": f"#/components/schemas/{schema}"})


@pytest.fixture
def app() -> Quart:
    return create_app(settings(), FakeJobs())
