"""POST /v1/embeddings."""

import asyncio
import logging
from functools import partial

from quart import Blueprint, Response, request

from api.auth import caller_of
from api.body import read_json
from api.deadlines import deadline_of
from api.errors import QUEUE_WAIT_HEADER
from api.generation import READ_TIMEOUT_HEADER, read_patience_s, with_lane
from api.job_types import Jobs
from api.protocol.embeddings import check_dimensions, encode_answer, parse_embeddings
from api.responses import json_response, set_request_id
from tasks.contracts import new_request_id
from tasks.settings import Settings

log = logging.getLogger(__name__)

OFF_LOOP_BYTES = 64 * 1024  #: vectors of this size and more are turned into JSON on a thread


def routes(settings: Settings, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("embeddings", __name__)
    parse = partial(parse_embeddings, max_inputs=settings.embedding_max_inputs)

    @blueprint.post("/embeddings")
    async def embeddings() -> Response:
        body, lane = await read_json(request, settings.max_body_bytes, with_lane(request, parse))
        model = jobs.require(body.model, "embedding")
        if model.width:
            check_dimensions(body.dimensions, model.width, settings.embedding_mrl)
        request_id = new_request_id("embd")
        set_request_id(request_id)
        patience_s = read_patience_s(request.headers.get(READ_TIMEOUT_HEADER))
        caller = caller_of(request)
        answer = await jobs.embed(
            request_id, body.model, body.texts, patience_s, lane, caller.share, caller.name, deadline_of(request)
        )
        check_dimensions(body.dimensions, answer.width, settings.embedding_mrl)
        encode = partial(
            encode_answer, body.model, answer.vectors, answer.prompt_tokens, body.encoding_format, body.dimensions
        )
        is_large = sum(map(len, answer.vectors)) >= OFF_LOOP_BYTES
        response = json_response(await asyncio.to_thread(encode) if is_large else encode())
        response.headers[QUEUE_WAIT_HEADER] = str(round(answer.queue_ms))
        if answer.truncated:
            response.headers["x-truncated-inputs"] = ",".join(map(str, answer.truncated))
            log.warning("inputs cut to the window", extra={"request_id": request_id, "inputs": answer.truncated})
        return response

    return blueprint
