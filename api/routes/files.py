"""POST, GET and DELETE /v1/files, and their content."""

from contextlib import aclosing
from urllib.parse import quote

from quart import Blueprint, Response, request

from api.auth import caller_of
from api.batches.service import Batches
from api.multipart import boundary_of, read_form
from api.protocol.fields import InvalidRequest
from api.protocol.files import file_json, page_json, read_files_query, read_upload
from api.responses import json_response
from api.upload_body import MAX_UPLOAD_BYTES

IDLE_S = 60.0  #: an upload may last, but not stop for so long
CONTENT_TYPE = "application/octet-stream"


def routes(batches: Batches) -> Blueprint:
    blueprint = Blueprint("files", __name__)
    files = batches.files

    @blueprint.post("/files")
    async def upload_file() -> Response:
        boundary = boundary_of(request)
        async with aclosing(await files.begin()) as upload:
            values, filename = await read_form(request, boundary, "file", upload.write, MAX_UPLOAD_BYTES, IDLE_S)
            form = read_upload(values, filename)
            if not upload.size:
                raise InvalidRequest("'file' is empty.", "file")
            record = await upload.commit(form.filename, form.purpose, caller_of(request).name, form.expires_after_s)
        return json_response(file_json(record))

    @blueprint.get("/files")
    async def list_files() -> Response:
        query = read_files_query(request.args)
        page = await files.page(caller_of(request).name, *query)
        return json_response(page_json([file_json(record) for record in page.files], page.has_more))

    @blueprint.get("/files/<file_id>")
    async def get_file(file_id: str) -> Response:
        return json_response(file_json(await files.get(file_id, caller_of(request).name)))

    @blueprint.get("/files/<file_id>/content")
    async def get_content(file_id: str) -> Response:
        record = await files.get(file_id, caller_of(request).name)
        response = Response(files.content(file_id), content_type=CONTENT_TYPE)
        response.timeout = None  # Quart cuts a response off after 60 s by default
        response.headers["Content-Length"] = str(record.bytes)
        response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}"
        return response

    @blueprint.delete("/files/<file_id>")
    async def delete_file(file_id: str) -> Response:
        await batches.delete_file(file_id, caller_of(request).name)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    return blueprint
