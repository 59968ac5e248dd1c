"""/v1/files: forms and queries -> what is asked, FileRecord -> JSON."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from api.batches.records import FileRecord
from api.protocol.fields import Fields, InvalidRequest, unsupported

PURPOSE = "batch"
OTHER_PURPOSES = frozenset({"assistants", "fine-tune", "vision", "user_data", "evals"})
SUFFIXES = frozenset({"", ".jsonl", ".ndjson", ".json"})
MAX_FILENAME = 255  #: characters
EXPIRES_S = (3600, 2_592_000)  #: an hour to 30 days: OpenAI's bounds
MAX_FILES = 10_000  #: of one page
ANCHOR = "created_at"


class UploadForm(NamedTuple):
    filename: str
    purpose: str
    expires_after_s: int | None


class FileQuery(NamedTuple):
    purpose: str | None
    after: str | None
    limit: int
    is_descending: bool


def read_upload(values: Mapping[str, str], filename: str | None) -> UploadForm:
    """The fields of a form; `filename` is that of its file, None when it has none. Raises InvalidRequest."""
    purpose = values.get("purpose")
    if not purpose:
        raise InvalidRequest("'purpose' is missing; it must be 'batch'.", "purpose")
    if purpose in OTHER_PURPOSES:
        raise unsupported("purpose", "Files are for batches here: 'purpose' must be 'batch'.")
    if purpose != PURPOSE:
        raise InvalidRequest("'purpose' must be 'batch'.", "purpose")
    if filename is None:
        raise InvalidRequest("'file' is missing; it must be a file of JSON lines.", "file")
    filename = filename.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1][-MAX_FILENAME:] or "upload"
    if PurePosixPath(filename).suffix.lower() not in SUFFIXES:
        raise InvalidRequest("'file' must have JSON lines in it, and a name that ends in '.jsonl'.", "file")
    nested = {name: values[key] for name in ("anchor", "seconds") if (key := f"expires_after[{name}]") in values}
    if not nested:
        return UploadForm(filename, purpose, None)
    seconds = nested.get("seconds", "")
    number = int(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 10 else seconds or None
    return UploadForm(filename, purpose, read_expiry({"expires_after": nested | {"seconds": number}}, "expires_after"))


def read_expiry(body: dict[str, Any], name: str) -> int | None:
    """Seconds of `{"anchor": "created_at", "seconds": 3600..2592000}`; None: it is not there. Raises InvalidRequest."""
    given = Fields(body).mapping(name)
    if given is None:
        return None
    fields = Fields(given, name)
    if fields.required_string("anchor") != ANCHOR:
        raise InvalidRequest(f"'{name}.anchor' must be '{ANCHOR}'.", f"{name}.anchor")
    seconds = fields.integer("seconds", *EXPIRES_S)
    if seconds is None:
        raise InvalidRequest(f"'{name}.seconds' is missing.", f"{name}.seconds")
    return seconds


def read_files_query(values: Mapping[str, str]) -> FileQuery:
    """Raises InvalidRequest."""
    order = values.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidRequest("'order' must be 'asc' or 'desc'.", "order")
    limit = read_limit(values, MAX_FILES, MAX_FILES)
    return FileQuery(values.get("purpose") or None, values.get("after") or None, limit, order == "desc")


def read_limit(values: Mapping[str, str], default: int, most: int) -> int:
    """`limit` of a query. Raises InvalidRequest."""
    given = values.get("limit")
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
        raise InvalidRequest(f"'limit' must be a whole number from 1 to {most}.", "limit")
    return int(given)


def file_json(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def page_json(items: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """A page of a list, with what its cursors are made of."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
