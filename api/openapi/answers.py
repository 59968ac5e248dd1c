"""Schemas of what the server answers. Members that are always there are required."""

from api.openapi.shapes import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    array,
    const,
    described,
    mapping,
    nullable,
    one_of,
    record,
    ref,
)
from api.protocol.responses_items import COMPLETED, INCOMPLETE
from api.protocol.service_tier import FLEX
from tasks.contracts import FinishReason, Lane, WorkerStatus

ERROR_TYPES = ("invalid_request_error", "authentication_error", "server_error")
HEALTH = ("ok", "loading", "draining", "error", "no_worker", "queue_unavailable")
TIER = one_of(["default", FLEX])
FINISH_REASON = one_of(reason.value for reason in FinishReason)

ERROR = record(
    error=record(
        message=TEXT,
        type=one_of(ERROR_TYPES),
        param=described(nullable(TEXT), "The field that is wrong."),
        code=nullable(TEXT),
    )
)
USAGE = record(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=record(cached_tokens=COUNT),
    completion_tokens_details=record(reasoning_tokens=COUNT),
)
TIMINGS = described(
    record(
        prompt_n=COUNT,
        prompt_ms=NUMBER,
        prompt_per_second=NUMBER,
        predicted_n=COUNT,
        predicted_ms=NUMBER,
        predicted_per_second=NUMBER,
        queue_ms=described(NUMBER, "The wait before a worker took the request."),
    ),
    "Names and units are llama-server's.",
)

# -- chat and completions ------------------------------------------------------------------------

_TOKEN: dict[str, Schema] = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT | {"maximum": 255})}
_SCORED = array(record(**_TOKEN, top_logprobs=array(record(**_TOKEN))))
LOGPROBS = record(content=_SCORED, refusal={"type": "null"})
LEGACY_LOGPROBS = record(
    tokens=array(TEXT), token_logprobs=array(NUMBER), top_logprobs=array(mapping(NUMBER)), text_offset=array(COUNT)
)
_CALL_MADE = record(name=TEXT, arguments=TEXT)
MESSAGE = record(
    ["reasoning_content", "tool_calls"],
    role=const("assistant"),
    content=nullable(TEXT),
    refusal={"type": "null"},
    reasoning_content=TEXT,
    tool_calls=array(record(id=TEXT, type=const("function"), function=_CALL_MADE)),
)
CHAT_COMPLETION = record(
    id=TEXT,
    object=const("chat.completion"),
    created=INTEGER,
    model=TEXT,
    choices=array(record(index=COUNT, message=MESSAGE, logprobs=nullable(LOGPROBS), finish_reason=FINISH_REASON)),
    usage=ref("Usage"),
    timings=ref("Timings"),
    service_tier=TIER,
)
_CALL_DELTA = record(
    ["id", "type"],
    index=COUNT,
    id=TEXT,
    type=const("function"),
    function=record(["name", "arguments"], name=TEXT, arguments=TEXT),
)
_DELTA = record(
    ["role", "content", "reasoning_content", "tool_calls"],
    role=const("assistant"),
    content=nullable(TEXT),
    reasoning_content=TEXT,
    tool_calls=array(_CALL_DELTA),
)
CHAT_CHUNK = record(
    ["usage", "timings", "service_tier"],
    id=TEXT,
    object=const("chat.completion.chunk"),
    created=INTEGER,
    model=TEXT,
    choices=array(
        record(index=COUNT, delta=_DELTA, logprobs=nullable(LOGPROBS), finish_reason=nullable(FINISH_REASON))
    ),
    usage=nullable(ref("Usage")),
    timings=ref("Timings"),
    service_tier=TIER,
)
_TEXT_CHOICE: dict[str, Schema] = {"index": COUNT, "text": TEXT, "logprobs": nullable(LEGACY_LOGPROBS)}
COMPLETION = record(
    id=TEXT,
    object=const("text_completion"),
    created=INTEGER,
    model=TEXT,
    choices=array(record(**_TEXT_CHOICE, finish_reason=FINISH_REASON)),
    usage=ref("Usage"),
    timings=ref("Timings"),
)
COMPLETION_CHUNK = record(
    ["usage", "timings"],
    id=TEXT,
    object=const("text_completion"),
    created=INTEGER,
    model=TEXT,
    choices=array(record(**_TEXT_CHOICE, finish_reason=nullable(FINISH_REASON))),
    usage=nullable(ref("Usage")),
    timings=ref("Timings"),
)

# -- responses -----------------------------------------------------------------------------------

_STATUS = one_of([COMPLETED, INCOMPLETE])
OUTPUT_ITEM: Schema = {
    "anyOf": [
        record(
            id=TEXT,
            type=const("message"),
            status=_STATUS,
            role=const("assistant"),
            content=array(
                record(type=const("output_text"), text=TEXT, annotations={"type": "array"}, logprobs=_SCORED)
            ),
        ),
        record(
            id=TEXT,
            type=const("reasoning"),
            status=_STATUS,
            summary={"type": "array"},
            content=array(record(type=const("reasoning_text"), text=TEXT)),
            encrypted_content={"type": "null"},
        ),
        record(id=TEXT, type=const("function_call"), status=_STATUS, call_id=TEXT, name=TEXT, arguments=TEXT),
    ]
}
RESPONSE = record(
    id=TEXT,
    object=const("response"),
    created_at=INTEGER,
    completed_at=nullable(INTEGER),
    status=_STATUS,
    error={"type": "null"},
    incomplete_details=nullable(record(reason=const("max_output_tokens"))),
    model=TEXT,
    output=array(ref("ResponseOutputItem")),
    usage=record(
        input_tokens=COUNT,
        input_tokens_details=record(cached_tokens=COUNT, cache_write_tokens=COUNT),
        output_tokens=COUNT,
        output_tokens_details=record(reasoning_tokens=COUNT),
        total_tokens=COUNT,
    ),
    timings=ref("Timings"),
    # what was asked for
    background=const(False),
    conversation={"type": "null"},
    instructions=nullable(TEXT),
    max_output_tokens=nullable(INTEGER),
    max_tool_calls=nullable(INTEGER),
    metadata=mapping(TEXT),
    parallel_tool_calls=BOOLEAN,
    previous_response_id={"type": "null"},
    prompt={"type": "null"},
    prompt_cache_key=nullable(TEXT),
    reasoning=record(effort=nullable(TEXT), summary=nullable(TEXT)),
    safety_identifier=nullable(TEXT),
    service_tier=TIER,
    store=const(False),
    temperature=NUMBER,
    text=record(format=ANY_OBJECT, verbosity=TEXT),
    tool_choice={"anyOf": [TEXT, ANY_OBJECT]},
    tools=array(ANY_OBJECT),
    top_logprobs=COUNT,
    top_p=NUMBER,
    truncation=const("disabled"),
    user=nullable(TEXT),
)

# -- the rest ------------------------------------------------------------------------------------

EMBEDDINGS = record(
    object=const("list"),
    model=TEXT,
    data=array(
        record(
            object=const("embedding"),
            index=COUNT,
            embedding={"anyOf": [array(NUMBER), described(TEXT, "base64 of little-endian float32")]},
        )
    ),
    usage=record(prompt_tokens=COUNT, total_tokens=COUNT),
)
TOKENS = record(
    tokens={
        "anyOf": [
            array(COUNT),
            array(record(id=COUNT, piece={"anyOf": [TEXT, array(COUNT | {"maximum": 255})]})),
        ]
    }
)
INPUT_TOKENS = record(object=const("response.input_tokens"), input_tokens=COUNT)
MODEL = record(
    id=TEXT,
    object=const("model"),
    created=INTEGER,
    owned_by=TEXT,
    meta=record(["n_embd"], kind=one_of(["chat", "embedding"]), n_ctx=COUNT, n_embd=COUNT),
)
HEALTH_REPORT = record(
    status=one_of(HEALTH),
    message=TEXT,
    models=array(TEXT),
    workers=array(
        record(
            name=TEXT,
            status=one_of(status.value for status in WorkerStatus),
            message=TEXT,
            progress=NUMBER,
            models=array(TEXT),
            slots=COUNT,
            running=COUNT,
        )
    ),
)
_ESTIMATE = record(wait_s=NUMBER, position=COUNT, is_measured=BOOLEAN)
QUEUE = record(
    object=const("queue"),
    groups=array(
        record(
            models=array(TEXT),
            workers=COUNT,
            slots=COUNT,
            lanes=mapping(record(waiting=COUNT, running=COUNT, estimate=_ESTIMATE)),
            rates=mapping(nullable(NUMBER)),
        )
    ),
    requests=array(
        record(
            id=TEXT,
            state=one_of(["waiting", "running"]),
            lane=one_of(lane.value for lane in Lane),
            position=COUNT,
            starts_at=NUMBER,
            wait_s=NUMBER,
            is_measured=BOOLEAN,
        )
    ),
    estimate_error=record(median=nullable(NUMBER), samples=COUNT),
)

ANSWERS: dict[str, Schema] = {
    "Error": ERROR,
    "Usage": USAGE,
    "Timings": TIMINGS,
    "ChatCompletion": CHAT_COMPLETION,
    "ChatCompletionChunk": CHAT_CHUNK,
    "Completion": COMPLETION,
    "CompletionChunk": COMPLETION_CHUNK,
    "Response": RESPONSE,
    "ResponseOutputItem": OUTPUT_ITEM,
    "Embeddings": EMBEDDINGS,
    "Tokens": TOKENS,
    "Text": record(content=TEXT),
    "Prompt": record(prompt=TEXT),
    "InputTokens": INPUT_TOKENS,
    "Model": MODEL,
    "Models": record(object=const("list"), data=array(ref("Model"))),
    "Health": HEALTH_REPORT,
    "Queue": QUEUE,
}
