"""Counting and looking at tokens: POST /tokenize, /detokenize, /apply-template, /chat/completions/input_tokens."""

from typing import Any

from quart import Blueprint, Response, request

from api.body import read_json
from api.job_types import Jobs
from api.protocol.chat import parse_chat
from api.protocol.response_format import may_have_grammar
from api.protocol.tokens import (
    Question,
    count_answer,
    count_query,
    parse_detokenize,
    parse_tokenize,
    template_query,
    tokens_answer,
)
from api.responses import json_response
from tasks.contracts import GenerateRequest
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("tokens", __name__)

    async def ask(question: Question) -> dict[str, Any]:
        return await jobs.query(question.model or chat_model(jobs, settings), question.query)

    async def read_chat() -> GenerateRequest:
        def parse(body: dict[str, Any]) -> GenerateRequest:
            return parse_chat(
                {**body, "model": body.get("model") or chat_model(jobs, settings)}, settings.max_n
            ).request

        return await read_json(request, settings.max_body_bytes, parse, may_have_grammar)

    @blueprint.post("/tokenize")
    async def tokenize() -> Response:
        values = await ask(await read_json(request, settings.max_body_bytes, parse_tokenize))
        return json_response(tokens_answer(values))

    @blueprint.post("/detokenize")
    async def detokenize() -> Response:
        values = await ask(await read_json(request, settings.max_body_bytes, parse_detokenize))
        return json_response({"content": values["text"]})

    @blueprint.post("/apply-template")
    async def apply_template() -> Response:
        chat = await read_chat()
        values = await jobs.query(chat.model, template_query(chat))
        return json_response({"prompt": values["prompt"]})

    @blueprint.post("/chat/completions/input_tokens")
    async def chat_input_tokens() -> Response:
        return json_response(await input_tokens(jobs, await read_chat()))

    return blueprint


def chat_model(jobs: Jobs, settings: Settings) -> str:
    """The one that is meant where a question names none."""
    return next((model.id for model in jobs.models() if model.kind == "chat"), settings.model_alias)


async def input_tokens(jobs: Jobs, generate: GenerateRequest) -> dict[str, Any]:
    """The answer's JSON: how many tokens the request's whole prompt has. Raises as `Jobs.query`."""
    return count_answer(await jobs.query(generate.model, count_query(generate)))
