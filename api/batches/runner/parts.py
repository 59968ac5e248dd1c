"""What is kept of the windows that are done.

{index}.json                the WindowRecord, created exclusively: the first one holds
{index}.{token}.{n}.out     lines of the output file; only those that a record names count
{index}.{token}.{n}.err     lines of the error file
"""

import asyncio
import secrets
from typing import NamedTuple

import msgspec

from api.batches.file_store import FileStore
from api.batches.records import BatchRecord, FileRecord, TokenCounts
from api.batches.runner.windows import Answered, Window

ENCODED_AT_ONCE = 256  #: answers; a vector as JSON is five times its size
RECORD = ".json"


class WindowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A window that is done."""

    end: int  #: where the next one begins
    next_number: int
    completed: int
    failed: int
    tokens: TokenCounts = TokenCounts()
    output: list[str] = []  #: parts, in order
    error: list[str] = []


class Results(NamedTuple):
    output: FileRecord | None
    error: FileRecord | None


class Parts:
    """Of one batch."""

    def __init__(self, files: FileStore, batch: BatchRecord) -> None:
        self._files = files
        self._batch = batch

    async def load(self) -> dict[int, WindowRecord]:
        """By the windows' indexes."""
        entries = await self._files.list_parts(self._batch.id)
        names = [entry.name for entry in entries if entry.name.endswith(RECORD)]
        return {int(name.removesuffix(RECORD)): await self._read(name) for name in names}

    async def commit(self, window: Window) -> WindowRecord:
        """Write a window all of whose lines are answered. Returns the record that holds: another process may have been
        faster. Raises StorageFull."""
        token = secrets.token_hex(4)
        output: list[str] = []
        error: list[str] = []
        for number, at in enumerate(range(0, len(window.answers), ENCODED_AT_ONCE)):
            good, bad = await asyncio.to_thread(_encode, window.answers[at : at + ENCODED_AT_ONCE])
            for names, ending, data in ((output, "out", good), (error, "err", bad)):
                if data:
                    name = f"{window.index:06d}.{token}.{number:03d}.{ending}"
                    await self._files.write_part(self._batch.id, name, data)
                    names.append(name)
        record = WindowRecord(
            end=window.end,
            next_number=window.next_number,
            completed=window.completed,
            failed=window.failed,
            tokens=window.tokens,
            output=output,
            error=error,
        )
        name = f"{window.index:06d}{RECORD}"
        is_first = await self._files.create_part(self._batch.id, name, msgspec.json.encode(record))
        return record if is_first else await self._read(name)

    async def assemble(self, records: dict[int, WindowRecord]) -> Results:
        """The output file and the error file; None: it would be empty. Raises StorageFull."""
        ordered = [records[index] for index in sorted(records)]
        output = [name for record in ordered for name in record.output]
        error = [name for record in ordered for name in record.error]
        return Results(await self._file("output", output), await self._file("error", error))

    async def remove(self) -> None:
        await self._files.remove_parts(self._batch.id)

    async def _file(self, kind: str, parts: list[str]) -> FileRecord | None:
        if not parts:
            return None
        batch = self._batch
        return await self._files.assemble(
            batch.id,
            parts,
            kind,
            filename=f"{batch.id}_{kind}.jsonl",
            key_name=batch.key_name,
            expires_after_s=batch.output_expires_after_s,
        )

    async def _read(self, name: str) -> WindowRecord:
        return msgspec.json.decode(await self._files.read_part(self._batch.id, name), type=WindowRecord)


def _encode(answers: list[Answered | None]) -> tuple[bytes, bytes]:
    good: list[bytes] = []
    bad: list[bytes] = []
    for answered in answers:
        assert answered is not None
        (bad if answered.is_error else good).append(answered.encode())
    return b"".join(good), b"".join(bad)
