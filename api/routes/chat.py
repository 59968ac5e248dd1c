"""POST /v1/chat/completions."""

from quart import Blueprint, Response, request

from api.body import read_json
from api.generation import respond
from api.job_types import Jobs
from api.protocol.chat import ChatAnswer, parse_chat
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("chat", __name__)

    @blueprint.post("/chat/completions")
    async def chat_completions() -> Response:
        parsed = await read_json(request, settings.max_body_bytes, parse_chat)
        jobs.require(parsed.request.model, "chat")
        return await respond(request, jobs, parsed, "chatcmpl", lambda job: ChatAnswer(job, parsed.include_usage))

    return blueprint
