"""Files and batches: their operations and schemas."""

from typing import Any

from api.batches.records import BatchStatus
from api.openapi.paths import OF_BODIES, answer_of, in_path, operation_of
from api.openapi.shapes import (
    COUNT,
    INTEGER,
    NAME,
    TEXT,
    Schema,
    array,
    body,
    const,
    described,
    mapping,
    nullable,
    one_of,
    record,
    ref,
)
from api.protocol.batch_lines import MODEL_KINDS
from api.protocol.batches import MAX_LIMIT, MAX_PAIRS, MAX_VALUE, TIMES, WINDOW
from api.protocol.files import ANCHOR, EXPIRES_S, MAX_FILES, PURPOSE

MULTIPART = "multipart/form-data"
NO_DATA: Schema = {"type": "string", "format": "binary"}
SECONDS: Schema = {"type": "integer", "minimum": EXPIRES_S[0], "maximum": EXPIRES_S[1]}
METADATA = mapping({"type": "string", "maxLength": MAX_VALUE}) | {"maxProperties": MAX_PAIRS}

_PAGE = {"first_id": nullable(TEXT), "last_id": nullable(TEXT), "has_more": {"type": "boolean"}}
_TOKENS = {"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT}

STORED: dict[str, Schema] = {
    "BatchRequest": body(
        ["input_file_id", "endpoint", "completion_window"],
        {
            "input_file_id": NAME,
            "endpoint": one_of(MODEL_KINDS),
            "completion_window": const(WINDOW),
            "metadata": METADATA,
            "output_expires_after": record(anchor=const(ANCHOR), seconds=SECONDS),
        },
    ),
    "FileUpload": {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": described(NO_DATA, "JSON lines, of 200 MB at most."),
            "purpose": const(PURPOSE),
            "expires_after[anchor]": const(ANCHOR),
            "expires_after[seconds]": SECONDS,
        },
    },
    "File": record(
        id=TEXT,
        object=const("file"),
        bytes=COUNT,
        created_at=INTEGER,
        expires_at=INTEGER,
        filename=TEXT,
        purpose=one_of([PURPOSE, "batch_output"]),
        status=const("processed"),
        status_details={"type": "null"},
    ),
    "Files": record(object=const("list"), data=array(ref("File")), **_PAGE),
    "DeletedFile": record(id=TEXT, object=const("file"), deleted=const(True)),
    "Batch": record(
        id=TEXT,
        object=const("batch"),
        endpoint=one_of(MODEL_KINDS),
        model=described(nullable(TEXT), "Known once the file is validated."),
        errors=nullable(record(object=const("list"), data=array(ref("BatchError")))),
        input_file_id=TEXT,
        completion_window=const(WINDOW),
        status=one_of(status.value for status in BatchStatus),
        output_file_id=nullable(TEXT),
        error_file_id=nullable(TEXT),
        created_at=INTEGER,
        **{name: nullable(INTEGER) for name in TIMES},
        request_counts=record(total=COUNT, completed=COUNT, failed=COUNT),
        usage=record(
            **_TOKENS,
            input_tokens_details=record(cached_tokens=COUNT),
            output_tokens_details=record(reasoning_tokens=COUNT),
        ),
        metadata=nullable(METADATA),
    ),
    "BatchError": record(
        code=TEXT, line=nullable({"type": "integer", "minimum": 1}), message=TEXT, param=nullable(TEXT)
    ),
    "Batches": record(object=const("list"), data=array(ref("Batch")), **_PAGE),
}


def _asked(name: str, schema: Schema, text: str) -> Schema:
    return {"name": name, "in": "query", "description": text, "schema": schema}


def _cursors(most: int) -> tuple[Schema, ...]:
    limit: Schema = {"type": "integer", "minimum": 1, "maximum": most}
    return (
        _asked("after", TEXT, "The last id of the page before."),
        _asked("limit", limit, "How many there are on a page."),
    )


def stored_paths() -> dict[str, Any]:
    upload = operation_of("createFile", "Keep a file.", answer_of("File"), (*OF_BODIES, "507"))
    upload["requestBody"] = {"required": True, "content": {MULTIPART: {"schema": ref("FileUpload")}}}
    content = answer_of("File", text="The file as it is.") | {
        "content": {"application/octet-stream": {"schema": NO_DATA}}
    }
    of_files = (
        _asked("purpose", TEXT, "Of these files alone."),
        _asked("order", one_of(["asc", "desc"]), "By the time of creation; `desc` when it is not given."),
        *_cursors(MAX_FILES),
    )
    file_id, batch_id = (in_path("file_id"),), (in_path("batch_id"),)
    create = operation_of("createBatch", "Run a file's requests.", answer_of("Batch"), (), "BatchRequest")
    return {
        "/files": {
            "post": upload,
            "get": operation_of("listFiles", "The key's files.", answer_of("Files"), ("400", "404"), "", of_files),
        },
        "/files/{file_id}": {
            "get": operation_of("getFile", "One of them.", answer_of("File"), ("404",), "", file_id),
            "delete": operation_of("deleteFile", "Remove it.", answer_of("DeletedFile"), ("404", "409"), "", file_id),
        },
        "/files/{file_id}/content": {
            "get": operation_of("getFileContent", "What is in it.", content, ("404",), "", file_id)
        },
        "/batches": {
            "post": create,
            "get": operation_of(
                "listBatches", "The key's batches.", answer_of("Batches"), ("400", "404"), "", _cursors(MAX_LIMIT)
            ),
        },
        "/batches/{batch_id}": {
            "get": operation_of("getBatch", "How far it is.", answer_of("Batch"), ("404",), "", batch_id)
        },
        "/batches/{batch_id}/cancel": {
            "post": operation_of("cancelBatch", "Stop it.", answer_of("Batch"), ("404", "409"), "", batch_id)
        },
    }
