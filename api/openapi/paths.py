"""Every operation: what it takes, and with which statuses and headers it answers."""

from typing import Any

from api.errors import QUEUE_WAIT_HEADER
from api.generation import READ_TIMEOUT_HEADER
from api.idempotency import MAX_KEY
from api.idempotent_readers import REPLAYED_HEADER
from api.openapi.shapes import TEXT, Schema, array, one_of, ref
from api.protocol.service_tier import HEADERS as TIER_HEADERS
from api.protocol.service_tier import TIERS

JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream"

HEADERS: dict[str, Any] = {
    "x-request-id": {"description": "The request's id, as the log has it.", "schema": TEXT, "required": True},
    QUEUE_WAIT_HEADER: {
        "description": "How long the request waited in the queue.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "x-truncated-inputs": {
        "description": "Numbers, from 0 and separated by commas, of the inputs that were cut to the model's window.",
        "schema": TEXT,
    },
    REPLAYED_HEADER: {"description": "'true' where a request before this one was given the answer.", "schema": TEXT},
    "Retry-After": {
        "description": "Seconds after which to ask again; it is on every 503.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 60},
    },
    "x-should-retry": {
        "description": "'false' where to ask again by oneself is of no use, or only much later.",
        "schema": TEXT,
    },
    "WWW-Authenticate": {"description": "The scheme.", "schema": TEXT, "required": True},
    "Allow": {"description": "The methods that this URL takes.", "schema": TEXT},
    "Accept-Encoding": {"description": "The encodings that are taken.", "schema": TEXT},
}
#: the errors of every operation, of those with a body, and of those that need the queue or a worker's answer
COMMON = ("401", "500")
OF_BODIES = ("400", "408", "413", "415", "431")
OF_WORKERS = ("404", "503")
OF_QUEUE = (*OF_WORKERS, "409")
ERRORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "400": ("A field is wrong, and `param` names it; or the prompt is longer than the model's window.", ()),
    "401": ("The API key is missing or wrong.", ("WWW-Authenticate",)),
    "404": ("No such model, or no such thing.", ()),
    "408": ("The body did not arrive in time.", ()),
    "409": (
        "The idempotency key is another request's, or cannot be used yet; a file is in use, a batch has ended.",
        ("Retry-After", "x-should-retry"),
    ),
    "413": ("The body is too large.", ()),
    "415": ("The body is no JSON, or in an unknown encoding.", ("Accept-Encoding",)),
    "431": ("The header fields are too large.", ()),
    "500": ("The server failed, or its worker did.", (QUEUE_WAIT_HEADER,)),
    "503": (
        "Busy (`server_busy`), without a model (`model_loading`), or without its queue (`queue_unavailable`).",
        ("Retry-After", "x-should-retry", QUEUE_WAIT_HEADER),
    ),
    "507": ("No room for it now: LIS_FILES_MAX_BYTES.", ("x-should-retry",)),
}
EXTRA_HEADERS = {
    "patience": {
        "name": READ_TIMEOUT_HEADER,
        "in": "header",
        "description": "Seconds that the client waits for the answer's head; SDKs send it.",
        "schema": TEXT,
    },
    "idempotency": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "A request that is sent again with its key gets the answer of the first.",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -~]+$"},
    },
    **{
        name: {"name": name, "in": "header", "description": "As the field `service_tier`.", "schema": one_of(TIERS)}
        for name in TIER_HEADERS
    },
}
QUEUED = tuple({"$ref": f"#/components/parameters/{name}"} for name in EXTRA_HEADERS)


def error_responses() -> dict[str, Any]:
    """The components that operations refer to."""
    return {
        f"Error{status}": {
            "description": text,
            "headers": _headers("x-request-id", *headers),
            "content": {JSON_TYPE: {"schema": ref("Error")}},
        }
        for status, (text, headers) in ERRORS.items()
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def answer_of(
    schema: str, headers: tuple[str, ...] = (), stream: str = "", text: str = "The answer."
) -> dict[str, Any]:
    content: dict[str, Any] = {JSON_TYPE: {"schema": ref(schema)}}
    if stream:
        content[STREAM_TYPE] = {"schema": {"type": "string", "description": stream}}
    return {"description": text, "headers": _headers("x-request-id", *headers), "content": content}


def operation_of(
    name: str,
    summary: str,
    answer: dict[str, Any] | None,
    errors: tuple[str, ...] = (),
    body: str = "",
    parameters: tuple[Schema, ...] = (),
) -> dict[str, Any]:
    """`answer`: of status 200; None: there is none."""
    statuses = sorted({*COMMON, *errors, *(OF_BODIES if body else ())})
    responses = {} if answer is None else {"200": answer}
    operation: dict[str, Any] = {"operationId": name, "summary": summary}
    if parameters:
        operation["parameters"] = list(parameters)
    if body:
        operation["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": ref(body)}}}
    errors_shown = {status: {"$ref": f"#/components/responses/Error{status}"} for status in statuses}
    return operation | {"responses": responses | errors_shown}


def in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _chunks(schema: str) -> str:
    return f"With `stream`: events whose data are `#/components/schemas/{schema}` each, or an error; then `[DONE]`."


def paths() -> dict[str, Any]:
    wait = (QUEUE_WAIT_HEADER, REPLAYED_HEADER)
    response_id = (in_path("response_id"),)
    kept_nowhere = "There are none: this server keeps no responses."
    asked_ids: Schema = {
        "name": "id",
        "in": "query",
        "description": "The requests whose place is wanted. Without one, all of the key that this process has.",
        "schema": array(TEXT),
    }
    health = operation_of("health", "Whether a chat would be accepted now. Needs no key.", answer_of("Health"))
    del health["responses"]["401"]
    health |= {"security": [{}]}
    health["responses"]["503"] = answer_of("Health", ("Retry-After", "x-should-retry"), text="Not now, and why.")
    return {
        "/health": {"get": health},
        "/openapi.json": {
            "get": operation_of(
                "openapi",
                "This description.",
                {
                    "description": "OpenAPI 3.1.",
                    "headers": _headers("x-request-id"),
                    "content": {JSON_TYPE: {"schema": {"type": "object"}}},
                },
            )
        },
        "/models": {"get": operation_of("listModels", "The models that are served.", answer_of("Models"))},
        "/models/{model_id}": {
            "get": operation_of(
                "getModel",
                "One of them; ids may hold slashes.",
                answer_of("Model"),
                OF_WORKERS,
                "",
                (in_path("model_id"),),
            )
        },
        "/chat/completions": {
            "post": operation_of(
                "createChatCompletion",
                "An answer to a conversation.",
                answer_of("ChatCompletion", wait, _chunks("ChatCompletionChunk")),
                OF_QUEUE,
                "ChatCompletionRequest",
                QUEUED,
            )
        },
        "/chat/completions/input_tokens": {
            "post": operation_of(
                "countChatTokens",
                "How many tokens a conversation's prompt has.",
                answer_of("InputTokens"),
                OF_WORKERS,
                "ChatCompletionQuestion",
            )
        },
        "/completions": {
            "post": operation_of(
                "createCompletion",
                "The continuation of texts.",
                answer_of("Completion", wait, _chunks("CompletionChunk")),
                OF_QUEUE,
                "CompletionRequest",
                QUEUED,
            )
        },
        "/embeddings": {
            "post": operation_of(
                "createEmbeddings",
                "Vectors of texts, with norm 1.",
                answer_of("Embeddings", (*wait, "x-truncated-inputs")),
                OF_QUEUE,
                "EmbeddingsRequest",
                QUEUED,
            )
        },
        "/responses": {
            "post": operation_of(
                "createResponse",
                "An answer to a conversation, as items.",
                answer_of("Response", wait, "With `stream`: OpenAI's events, each named by its `type`."),
                OF_QUEUE,
                "ResponseRequest",
                QUEUED,
            )
        },
        "/responses/input_tokens": {
            "post": operation_of(
                "countResponseTokens",
                "How many tokens a response's prompt has.",
                answer_of("InputTokens"),
                OF_WORKERS,
                "ResponseQuestion",
            )
        },
        "/responses/{response_id}": {
            "get": operation_of("getResponse", kept_nowhere, None, ("404",), "", response_id),
            "delete": operation_of("deleteResponse", kept_nowhere, None, ("404",), "", response_id),
        },
        "/responses/{response_id}/input_items": {
            "get": operation_of("listInputItems", kept_nowhere, None, ("404",), "", response_id)
        },
        "/responses/{response_id}/cancel": {
            "post": operation_of("cancelResponse", kept_nowhere, None, ("404",), "", response_id)
        },
        "/tokenize": {
            "post": operation_of(
                "tokenize", "The token ids of a text.", answer_of("Tokens"), OF_WORKERS, "TokenizeRequest"
            )
        },
        "/detokenize": {
            "post": operation_of(
                "detokenize", "The text of token ids.", answer_of("Text"), OF_WORKERS, "DetokenizeRequest"
            )
        },
        "/apply-template": {
            "post": operation_of(
                "applyTemplate",
                "A conversation as the prompt that the model would get.",
                answer_of("Prompt"),
                OF_WORKERS,
                "ChatCompletionQuestion",
            )
        },
        "/queue": {
            "get": operation_of(
                "queue",
                "What waits, what runs, and how long a wait is to be expected.",
                answer_of("Queue"),
                ("503",),
                "",
                (asked_ids,),
            )
        },
    }
