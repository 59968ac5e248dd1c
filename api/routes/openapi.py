"""GET /openapi.json."""

import msgspec
from quart import Blueprint, Response

from api.job_types import Jobs
from api.openapi import document
from api.responses import json_response
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("openapi", __name__)
    described = msgspec.json.encode(document(settings))

    @blueprint.get("/openapi.json")
    async def openapi() -> Response:
        return json_response(described)

    return blueprint
