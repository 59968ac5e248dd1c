"""POST /v1/responses and /v1/responses/input_tokens, and why a response cannot be looked up afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quart import Blueprint, Response, request

from api.body import read_json
from api.errors import INVALID_REQUEST, ErrorAnswer
from api.generation import collect, prepared, run, streaming, with_lane, with_wait
from api.job_types import Jobs, RequestFailed
from api.protocol.response_format import may_have_grammar
from api.protocol.responses_answer import ResponseAnswer
from api.protocol.responses_request import own_param, own_terms, parse_response
from api.protocol.service_tier import tier_of
from api.responses import json_response
from api.routes.tokens import chat_model, input_tokens
from tasks.contracts import GenerateRequest
from tasks.settings import Settings

MAX_SHOWN = 100  #: characters of a client's own id in a message


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("responses", __name__)

    @blueprint.post("/responses")
    async def create_response() -> Response:
        parse = with_lane(request, parse_response)
        parsed, lane = await read_json(request, settings.max_body_bytes, parse, may_have_grammar)
        jobs.require(parsed.generation.request.model, "chat")
        job_request = prepared(request, parsed.generation.request, jobs, "resp", lane)
        answer = ResponseAnswer(job_request, parsed.echo | {"service_tier": tier_of(lane)})
        with own_names():
            running = await run(request, jobs, job_request)
            if parsed.generation.stream:
                return streaming(running, answer)
            whole = answer.whole(await collect(running.reader), running.job.queue_ms)
        return with_wait(json_response(whole), running.job)

    @blueprint.post("/responses/input_tokens")
    async def response_input_tokens() -> Response:
        def parse(body: dict[str, Any]) -> GenerateRequest:
            given = body.get("model") or chat_model(jobs, settings)
            return parse_response({**body, "model": given}).generation.request

        generate = await read_json(request, settings.max_body_bytes, parse, may_have_grammar)
        with own_names():
            return json_response(await input_tokens(jobs, generate))

    @blueprint.get("/responses/<response_id>")
    @blueprint.delete("/responses/<response_id>")
    @blueprint.get("/responses/<response_id>/input_items")
    @blueprint.post("/responses/<response_id>/cancel")
    async def stored_response(response_id: str) -> Response:
        message = f"There is no response '{response_id[:MAX_SHOWN]}': this server keeps none, 'store' is always false."
        error = ErrorAnswer(404, message, INVALID_REQUEST, "response_not_found", "response_id")
        return json_response(error.body(), error.status)

    return blueprint


@contextmanager
def own_names() -> Iterator[None]:
    """What the worker says of a chat's fields names those of this endpoint."""
    try:
        yield
    except RequestFailed as exc:
        raise exc.reworded(own_terms(exc.message), own_param(exc.param)) from None
