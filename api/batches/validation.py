"""An input file, line by line, before anything of it runs.

On a thread that lets others have the interpreter every few milliseconds. Of the whole file it keeps 8 bytes of each
custom_id's digest and its line number, and of what is wrong the first MAX_ERRORS.
"""

import asyncio
import hashlib
import threading
import time
from contextlib import closing
from typing import NamedTuple

from api.batches.errors import MAX_SHOWN, FileMissing
from api.batches.file_store import FileStore
from api.batches.records import BatchRecord, LineError
from api.job_types import Jobs, ModelNotFound, WrongModelKind
from api.protocol.batch_lines import MODEL_KINDS, BatchLine, LineInvalid, ParseBody, body_parser, parse_line
from api.protocol.embeddings import EmbeddingsBody, check_dimensions
from api.protocol.fields import InvalidRequest
from tasks.contracts import ModelInfo
from tasks.settings import Settings

MAX_LINES = 50_000  #: of one file; OpenAI's limit
MAX_ERRORS = 100  #: that are listed
WORK_S, PAUSE_S = 0.004, 0.002  #: so long it works, so long it rests


class Findings(NamedTuple):
    """What a file's lines are."""

    model: str = ""
    total: int = 0  #: lines that are not blank
    errors: tuple[LineError, ...] = ()
    first_line: int = 1  #: that names the model
    dimensions: tuple[tuple[int, int], ...] = ()  #: the largest `dimensions` and the smallest, with their lines


class Validator:
    """One per API process."""

    def __init__(self, settings: Settings, jobs: Jobs, files: FileStore, max_lines: int = MAX_LINES) -> None:
        self._settings = settings
        self._jobs = jobs
        self._files = files
        self._max_lines = max_lines
        self._read: dict[str, Findings] = {}  #: files that are read, while no worker says which models there are

    async def validate(self, batch: BatchRecord) -> Findings:
        """Raises ModelLoading, QueueUnavailable: whether the model is served is not known now."""
        found = self._read.get(batch.id) or await self._read_lines(batch)
        if found.errors:
            return found
        self._read[batch.id] = found
        errors = self._check_model(batch, found)
        del self._read[batch.id]
        return found._replace(errors=errors)

    async def _read_lines(self, batch: BatchRecord) -> Findings:
        is_over = threading.Event()
        reader = LineReader(batch.endpoint, self._settings, self._max_lines)
        try:
            return await asyncio.to_thread(reader.read, self._files, batch.input_file_id, is_over)
        except FileMissing as exc:
            return Findings(errors=(LineError(code="file_not_found", message=str(exc), param="input_file_id"),))
        finally:
            is_over.set()

    def _check_model(self, batch: BatchRecord, found: Findings) -> tuple[LineError, ...]:
        try:
            model = self._jobs.require(found.model, MODEL_KINDS[batch.endpoint])
        except (ModelNotFound, WrongModelKind) as exc:
            code = "model_not_found" if isinstance(exc, ModelNotFound) else "invalid_request"
            return (LineError(code=code, message=str(exc), line=found.first_line, param="body.model"),)
        return self._check_dimensions(model, found)

    def _check_dimensions(self, model: ModelInfo, found: Findings) -> tuple[LineError, ...]:
        errors: dict[int, LineError] = {}
        for dimensions, line in found.dimensions if model.width else ():
            try:
                check_dimensions(dimensions, model.width, self._settings.embedding_mrl)
            except InvalidRequest as exc:
                errors[line] = LineError(
                    code="invalid_request", message=exc.message, line=line, param="body.dimensions"
                )
        return tuple(errors.values())


class LineReader:
    """Reads one file once, on a thread."""

    def __init__(self, endpoint: str, settings: Settings, max_lines: int) -> None:
        self._endpoint = endpoint
        self._max_line_bytes = settings.max_body_bytes
        self._max_lines = max_lines
        self._parse: ParseBody = body_parser(endpoint, max_inputs=settings.embedding_max_inputs, max_n=settings.max_n)
        self._ids: dict[bytes, int] = {}
        self._errors: list[LineError] = []
        self._model = ""
        self._first_line = 1
        self._dimensions: dict[int, int] = {}

    def read(self, files: FileStore, file_id: str, is_over: threading.Event) -> Findings:
        """`is_over`: nobody waits for it any more. Raises FileMissing."""
        total = 0
        rested_s = time.monotonic()
        with closing(files.iter_lines(file_id, self._max_line_bytes)) as lines:
            for line in lines:
                total += 1
                if total > self._max_lines:
                    message = f"The file has more than {self._max_lines} lines."
                    self._errors.append(LineError(code="too_many_lines", message=message, line=line.number))
                    break
                self._check(line.number, line.data)
                if len(self._errors) >= MAX_ERRORS or is_over.is_set():
                    break
                if time.monotonic() - rested_s > WORK_S:
                    time.sleep(PAUSE_S)
                    rested_s = time.monotonic()
        if total == 0:
            self._errors.append(LineError(code="empty_file", message="The file has no lines."))
        named = sorted(self._dimensions.items())
        return Findings(self._model, total, tuple(self._errors), self._first_line, tuple({*named[:1], *named[-1:]}))

    def _check(self, number: int, data: bytes | None) -> None:
        try:
            if data is None:
                raise LineInvalid("invalid_request", f"The line is longer than {self._max_line_bytes} bytes.")
            line = parse_line(data, self._endpoint, self._parse)
            self._check_id(number, line.custom_id)
            self._check_model(number, line)
        except LineInvalid as exc:
            self._errors.append(LineError(code=exc.code, message=exc.message, line=number, param=exc.param))

    def _check_id(self, number: int, custom_id: str) -> None:
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        first = self._ids.setdefault(digest, number)
        if first != number:
            message = f"The custom_id '{custom_id[:MAX_SHOWN]}' is that of line {first} already."
            raise LineInvalid("duplicate_custom_id", message, "custom_id")

    def _check_model(self, number: int, line: BatchLine) -> None:
        if not self._model:
            self._model, self._first_line = line.model, number
        elif line.model != self._model:
            message = f"The model is '{line.model[:MAX_SHOWN]}', and '{self._model[:MAX_SHOWN]}' on the lines before."
            raise LineInvalid("mismatched_model", message, "body.model")
        if isinstance(line.parsed, EmbeddingsBody) and line.parsed.dimensions is not None:
            self._dimensions.setdefault(line.parsed.dimensions, number)
