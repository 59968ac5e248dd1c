"""The Quart application: wiring only."""

import logging
from collections.abc import Callable

from quart import Blueprint, Quart, Response, request

from api import auth
from api.batches.service import Batches
from api.cors import add_cors, preflight
from api.edge import Edge
from api.errors import describe, is_unexpected
from api.idempotency import KEY_HEADER, Idempotency
from api.job_types import Jobs
from api.keys import load_keys
from api.responses import json_response, request_id
from api.routes import batches as batch_routes
from api.routes import chat, completions, embeddings, files, health, models, openapi, queue, responses, tokens
from api.upload_body import ApiRequest
from tasks.settings import Settings, load_settings

log = logging.getLogger(__name__)

#: every endpoint family; each is served with and without the prefix
ROUTES: tuple[Callable[[Settings, Jobs], Blueprint], ...] = (
    health.routes,
    models.routes,
    chat.routes,
    completions.routes,
    responses.routes,
    embeddings.routes,
    tokens.routes,
    queue.routes,
    openapi.routes,
)
#: those of what is kept
STORED_ROUTES: tuple[Callable[[Batches], Blueprint], ...] = (files.routes, batch_routes.routes)
PREFIXES = ("/v1", "")

BODY_TIMEOUT_S = 60
SEND_TIMEOUT_S = 60  #: for answers that do not stream, from their head on: waiting and generating do not count


def create_app(settings: Settings | None = None, jobs: Jobs | None = None, batches: Batches | None = None) -> Quart:
    """The ASGI app. Without `settings` it reads them from the environment.

    Without `jobs` it makes its own JobClient and Batches, and starts and stops them with the server. With `jobs` alone
    batches are kept, and nobody works on them. Raises SettingsInvalid.
    """
    settings = settings or load_settings()
    app = Quart("api", static_folder=None)
    app.request_class = ApiRequest
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["BODY_TIMEOUT"] = BODY_TIMEOUT_S
    app.config["RESPONSE_TIMEOUT"] = SEND_TIMEOUT_S
    client = _own_client(app, settings) if jobs is None else jobs
    stored = batches or Batches(settings, client)
    if jobs is None:
        app.before_serving(stored.start)
        app.after_serving(stored.stop)
    for prefix in PREFIXES:
        blueprints = [make(settings, client) for make in ROUTES] + [make(stored) for make in STORED_ROUTES]
        for blueprint in blueprints:
            name = blueprint.name + prefix.replace("/", "_")  # a blueprint registered twice needs two names
            app.register_blueprint(blueprint, url_prefix=prefix or None, name=name)
    _add_hooks(app, settings, _idempotency(app, settings))
    app.asgi_app = Edge(app.asgi_app)  # type: ignore[method-assign]
    return app


def _own_client(app: Quart, settings: Settings) -> Jobs:
    from api.jobs import JobClient  # here: it brings Celery and Redis, which an app with other jobs does not need

    client = JobClient(settings)
    app.before_serving(client.start)
    app.after_serving(client.stop)
    return client


def _idempotency(app: Quart, settings: Settings) -> Idempotency | None:
    """None: keys are ignored."""
    if not settings.idempotency_ttl_s:
        return None
    idempotency = Idempotency(app.asgi_app, settings)
    app.after_serving(idempotency.stop)
    return idempotency


def _add_hooks(app: Quart, settings: Settings, idempotency: Idempotency | None) -> None:
    keys = load_keys(settings)

    async def admit() -> Response | None:
        if request.method == "OPTIONS":
            return preflight(request.headers.get("Access-Control-Request-Headers"))
        auth.admit(request, keys)
        if idempotency is not None and KEY_HEADER in request.headers:
            return await idempotency.answer(request)
        return None

    async def answer_error(exc: Exception) -> Response:
        error = describe(exc)
        if is_unexpected(exc):
            log.error("request failed", exc_info=exc, extra={"request_id": request_id()})
        response = json_response(error.body(), error.status)
        response.headers.update(error.headers)
        return response

    async def finish(response: Response) -> Response:
        response.headers["x-request-id"] = request_id()
        add_cors(response, settings.cors_origins, request.headers.get("Origin"))
        return response

    app.before_request(admit)
    app.register_error_handler(Exception, answer_error)
    app.after_request(finish)
