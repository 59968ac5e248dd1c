"""POST and GET /v1/batches, and their cancellation."""

import time

from quart import Blueprint, Response, request

from api.auth import caller_of
from api.batches import names
from api.batches.errors import FileMissing
from api.batches.records import BatchRecord
from api.batches.service import WINDOW_S, Batches
from api.body import read_json
from api.protocol.batches import DEFAULT_LIMIT, MAX_LIMIT, batch_json, parse_batch
from api.protocol.fields import InvalidRequest
from api.protocol.files import PURPOSE, page_json, read_limit
from api.responses import json_response


def routes(batches: Batches) -> Blueprint:
    blueprint = Blueprint("batches", __name__)
    store = batches.store

    @blueprint.post("/batches")
    async def create_batch() -> Response:
        body = await read_json(request, batches.settings.max_body_bytes, parse_batch)
        caller = caller_of(request)
        try:
            file = await batches.files.get(body.input_file_id, caller.name)
        except FileMissing as exc:
            raise InvalidRequest(str(exc), "input_file_id") from None
        if file.purpose != PURPOSE:
            raise InvalidRequest(f"The file's purpose is '{file.purpose}'; it must be '{PURPOSE}'.", "input_file_id")
        now_s = int(time.time())
        batch = BatchRecord(
            id=names.new_batch_id(),
            key_name=caller.name,
            share=caller.share,
            endpoint=body.endpoint,
            input_file_id=file.id,
            output_expires_after_s=body.output_expires_after_s,
            metadata=body.metadata,
            created_at=now_s,
            expires_at=now_s + WINDOW_S,
        )
        return json_response(batch_json(await batches.create(batch)))

    @blueprint.get("/batches")
    async def list_batches() -> Response:
        limit = read_limit(request.args, DEFAULT_LIMIT, MAX_LIMIT)
        page = await store.page(caller_of(request).name, request.args.get("after") or None, limit)
        newest = await batches.with_progress(page.batches)
        return json_response(page_json([batch_json(batch) for batch in newest], page.has_more))

    @blueprint.get("/batches/<batch_id>")
    async def get_batch(batch_id: str) -> Response:
        batch = await store.get(batch_id, caller_of(request).name)
        (newest,) = await batches.with_progress([batch])
        return json_response(batch_json(newest))

    @blueprint.post("/batches/<batch_id>/cancel")
    async def cancel_batch(batch_id: str) -> Response:
        batch = await batches.cancel(batch_id, caller_of(request).name)
        (newest,) = await batches.with_progress([batch])
        return json_response(batch_json(newest))

    return blueprint
