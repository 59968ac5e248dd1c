"""GET /v1/models and /v1/models/{id}, answered from memory."""

from quart import Blueprint, Response

from api.job_types import Jobs
from api.protocol.models import model_json, models_json
from api.responses import json_response
from tasks.settings import Settings


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("models", __name__)

    @blueprint.get("/models")
    async def list_models() -> Response:
        return json_response(models_json(jobs.models()))

    @blueprint.get("/models/<path:model_id>")
    async def get_model(model_id: str) -> Response:
        """`require` says why an id is not there: unknown, or no worker is ready."""
        by_id = {model.id: model for model in jobs.models()}
        model = by_id.get(model_id) or jobs.require(model_id, "chat")
        return json_response(model_json(model))

    return blueprint
