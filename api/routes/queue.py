"""GET /v1/queue."""

from quart import Blueprint, Response, request

from api.auth import caller_of
from api.job_types import Jobs
from api.protocol.queue import queue_json
from api.responses import json_response
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("queue", __name__)

    @blueprint.get("/queue")
    async def queue() -> Response:
        """`?id=`, any number of times: the requests whose place is wanted; without one, all that this API process has
        of the caller's key."""
        report = await jobs.queue(caller_of(request), request.args.getlist("id"))
        return json_response(queue_json(report))

    return blueprint
