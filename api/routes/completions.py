"""POST /v1/completions."""

from functools import partial

from quart import Blueprint, Response, request

from api.body import read_json
from api.generation import respond, with_lane
from api.job_types import Jobs
from api.protocol.completions import CompletionAnswer, parse_completion
from api.protocol.response_format import may_have_grammar
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("completions", __name__)
    parse = partial(parse_completion, max_n=settings.max_n)

    @blueprint.post("/completions")
    async def completions() -> Response:
        parse_both = with_lane(request, parse)
        parsed, lane = await read_json(request, settings.max_body_bytes, parse_both, may_have_grammar)
        jobs.require(parsed.request.model, "chat")
        return await respond(request, jobs, parsed, lane, "cmpl", CompletionAnswer)

    return blueprint
