"""GET /health: 200 when a chat would be accepted, else 503 and why. Open to all, answered from memory."""

from quart import Blueprint, Response

from api.errors import retry_headers
from api.job_types import Jobs
from api.protocol.models import health_json, judge_health
from api.responses import json_response
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("health", __name__)

    @blueprint.get("/health")
    async def health() -> Response:
        workers, models = jobs.workers(), jobs.models()
        verdict = judge_health(jobs.is_reachable(), workers)
        response = json_response(health_json(verdict, workers, models), 200 if verdict.is_ok else 503)
        if not verdict.is_ok:
            response.headers.update(retry_headers(verdict.retry_after_s))
        return response

    return blueprint
