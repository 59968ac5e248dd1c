"""POST /v1/completions."""

from quart import Blueprint, Response, request

from api.body import read_json
from api.generation import respond
from api.job_types import Jobs
from api.protocol.completions import CompletionAnswer, parse_completion
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("completions", __name__)

    @blueprint.post("/completions")
    async def completions() -> Response:
        parsed = await read_json(request, settings.max_body_bytes, parse_completion)
        jobs.require(parsed.request.model, "chat")
        return await respond(
            request, jobs, parsed, "cmpl", lambda job: CompletionAnswer(job, parsed.include_usage, parsed.echo)
        )

    return blueprint
