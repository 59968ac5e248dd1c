"""Schemas of what clients send. Ranges of single values are those that the protocol's readers check."""

from functools import partial

from api.openapi.messages import CALLED, CONTENT, FUNCTION, MESSAGES, OUTPUT, TOOL_CHOICE, TOOLS
from api.openapi.shapes import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    INTEGER,
    NAME,
    NUMBER,
    TEXT,
    Schema,
    array,
    asked_of,
    body,
    const,
    described,
    mapping,
    nullable,
    one_of,
    record,
)
from api.protocol import (
    embeddings,
    logit_bias,
    response_format,
    responses_fields,
    responses_input,
    responses_request,
    responses_tools,
)
from api.protocol.chat import EFFORTS
from api.protocol.completions import MAX_PROMPTS
from api.protocol.fields import MAX_INT, Fields
from api.protocol.logprobs import MAX_TOP_LOGPROBS, read_chat_logprobs
from api.protocol.sampling import (
    MAX_BREAKER_CHARS,
    MAX_BREAKERS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    read_choices,
    read_sampling,
    read_stream,
)
from api.protocol.service_tier import TIERS
from tasks.settings import Settings

_STOP = {"type": "string", "maxLength": MAX_STOP_CHARS}
_BIAS = {"anyOf": [NUMBER | {"minimum": -100, "maximum": 100}, const(False)]}
_BIASED = {"anyOf": [COUNT | {"maximum": MAX_INT}, TEXT | {"maxLength": logit_bias.MAX_BIAS_TEXT_CHARS}]}

#: more than a type and a closed range
SAMPLING: dict[str, Schema] = {
    "repeat_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
    "stop": described(
        {"anyOf": [_STOP, array(_STOP, maxItems=MAX_STOPS)]}, "The answer ends before one of these texts."
    ),
    "logit_bias": described(
        {
            "anyOf": [
                mapping(_BIAS) | {"maxProperties": logit_bias.MAX_BIASES},
                array(
                    {"type": "array", "prefixItems": [_BIASED, _BIAS], "minItems": 2, "maxItems": 2},
                    maxItems=logit_bias.MAX_BIASES,
                ),
            ]
        },
        "A map from token id or text to what is added to its logit, or a list of such pairs; false: never.",
    ),
    "dry_sequence_breakers": array(
        {"type": "string", "minLength": 1, "maxLength": MAX_BREAKER_CHARS}, maxItems=MAX_BREAKERS
    ),
}
GRAMMAR: dict[str, Schema] = {
    "response_format": {
        "type": "object",
        "properties": {
            "type": one_of(response_format.FORMATS),
            "schema": nullable(ANY_OBJECT),
            "json_schema": nullable(
                body(["schema"], {"name": TEXT, "description": TEXT, "strict": BOOLEAN, "schema": ANY_OBJECT})
            ),
        },
    },
    "json_schema": described(ANY_OBJECT, "As llama.cpp has it: a JSON schema of the answer."),
    "schema": described(ANY_OBJECT, "The same by another name."),
    "grammar": described(TEXT, "GBNF, llama.cpp's notation."),
}
STREAM: dict[str, Schema] = {
    "stream": BOOLEAN,
    "stream_options": body([], {"include_usage": BOOLEAN}),
}
QUEUE: dict[str, Schema] = {
    "service_tier": described(one_of(TIERS), "'flex' waits behind the others."),
    "deadline_ms": described(
        INTEGER | {"minimum": 1, "maximum": MAX_INT},
        "The answer must have begun within so many milliseconds; else it is not begun at all.",
    ),
}
TEMPLATE: dict[str, Schema] = {
    "reasoning_effort": one_of(EFFORTS),
    "chat_template_kwargs": described(ANY_OBJECT, "Variables for the model's chat template."),
}


TEXT_FORMAT: Schema = {
    "type": "object",
    "properties": {
        "type": one_of(response_format.FORMATS),
        "name": nullable(TEXT),
        "strict": nullable(BOOLEAN),
        "schema": nullable(ANY_OBJECT),
    },
}
INPUT_ITEM: Schema = {
    "anyOf": [
        record(["type"], type=const("message"), role=one_of(responses_input.ROLES), content=CONTENT),
        body(
            ["type", "name"],
            {"type": const("function_call"), "call_id": TEXT, "id": TEXT, **CALLED["properties"]},
        ),
        body(
            ["type", "output"], {"type": const("function_call_output"), "call_id": TEXT, "name": TEXT, "output": OUTPUT}
        ),
        body(["type"], {"type": const("reasoning"), "content": array(body([], {"text": TEXT}))}),
    ]
}
RESPONSE_TOOL_CHOICE: Schema = {
    "anyOf": [
        one_of(responses_tools.CHOICES),
        body(["type", "name"], {"type": const("function"), "name": NAME}),
        body(
            ["type", "mode", "tools"],
            {
                "type": const("allowed_tools"),
                "mode": one_of(["auto", "required"]),
                "tools": array(ANY_OBJECT, minItems=1),
            },
        ),
    ]
}


def generation_fields(max_n: int) -> dict[str, Schema]:
    """What chat and completions share."""
    single = asked_of(read_sampling, read_stream, partial(_read_n, max_n))
    return {"model": NAME} | single | SAMPLING | GRAMMAR | STREAM | QUEUE


def _read_n(max_n: int, fields: Fields) -> None:
    read_choices(fields, max_n)


def chat_body(max_n: int) -> Schema:
    own = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": TOOL_CHOICE, "parallel_tool_calls": BOOLEAN}
    return body(["model", "messages"], generation_fields(max_n) | asked_of(read_chat_logprobs) | TEMPLATE | own)


def question_body(chat: Schema) -> Schema:
    """A chat's body as it is counted or rendered: the model may be left out."""
    properties = chat["properties"] | {"model": nullable(chat["properties"]["model"])}
    return chat | {"required": [name for name in chat["required"] if name != "model"], "properties": properties}


def completion_body(max_n: int) -> Schema:
    own = {
        "prompt": {"anyOf": [TEXT, array(TEXT, minItems=1, maxItems=MAX_PROMPTS)]},
        "suffix": described(TEXT, "The text after the gap that is to be filled."),
        "echo": BOOLEAN,
        "best_of": INTEGER | {"minimum": 1, "maximum": max_n},
        "logprobs": {"anyOf": [COUNT | {"maximum": MAX_TOP_LOGPROBS}, const(False)]},
    }
    return body(["model", "prompt"], generation_fields(max_n) | own)


def embeddings_body(max_inputs: int) -> Schema:
    text = {"type": "string", "minLength": 1}
    own = {
        "model": NAME,
        "input": {"anyOf": [text, array(text, minItems=1, maxItems=max_inputs)]},
        "encoding_format": one_of(embeddings.FORMATS),
        "dimensions": INTEGER | {"minimum": 1},
    }
    return body(["model", "input"], own | QUEUE)


def response_body() -> Schema:
    moved = {*responses_fields.MOVED, *responses_fields.REFUSED, "n", *GRAMMAR, "logprobs", *TEMPLATE}
    shared = {name: schema for name, schema in generation_fields(1).items() if name not in moved}
    own = {
        "input": {"anyOf": [TEXT, array(INPUT_ITEM, minItems=1)]},
        "instructions": TEXT,
        "max_output_tokens": INTEGER | {"minimum": 1},
        "include": array(one_of([responses_fields.LOGPROBS, *sorted(responses_fields.HARMLESS_INCLUDES)])),
        "metadata": mapping({"type": "string", "maxLength": responses_fields.MAX_VALUE_CHARS})
        | {
            "maxProperties": responses_fields.MAX_METADATA,
            "propertyNames": {"maxLength": responses_fields.MAX_KEY_CHARS},
        },
        "reasoning": body(
            [],
            {
                "effort": one_of(EFFORTS),
                "summary": one_of(responses_fields.SUMMARIES),
                "generate_summary": one_of(responses_fields.SUMMARIES),
            },
        ),
        "text": body([], {"format": TEXT_FORMAT, "verbosity": one_of(responses_request.VERBOSITIES)}),
        "tools": array(body(["type", "name"], {"type": const("function"), **FUNCTION})),
        "tool_choice": RESPONSE_TOOL_CHOICE,
        "truncation": one_of(responses_fields.TRUNCATIONS),
        "stream_options": body([], {"include_obfuscation": BOOLEAN}),
        "chat_template_kwargs": TEMPLATE["chat_template_kwargs"],
        "top_logprobs": COUNT | {"maximum": responses_fields.MAX_TOP_LOGPROBS},
        "store": const(False),
        "background": const(False),
    }
    passive = asked_of(responses_fields.check_passive)
    return body(["model", "input"], shared | passive | QUEUE | own)


TOKENIZE_BODY = body(
    ["content"],
    {"model": TEXT, "content": TEXT, "add_special": BOOLEAN, "parse_special": BOOLEAN, "with_pieces": BOOLEAN},
)
DETOKENIZE_BODY = body(["tokens"], {"model": TEXT, "tokens": array(COUNT | {"maximum": MAX_INT})})


def bodies(settings: Settings) -> dict[str, Schema]:
    """By the names they have in the document."""
    chat = chat_body(settings.max_n)
    response = response_body()
    return {
        "ChatCompletionRequest": chat,
        "ChatCompletionQuestion": question_body(chat),
        "CompletionRequest": completion_body(settings.max_n),
        "EmbeddingsRequest": embeddings_body(settings.embedding_max_inputs),
        "ResponseRequest": response,
        "ResponseQuestion": question_body(response),
        "TokenizeRequest": TOKENIZE_BODY,
        "DetokenizeRequest": DETOKENIZE_BODY,
    }
