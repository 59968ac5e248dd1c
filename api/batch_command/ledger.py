"""The state of a run, beside OUTPUT: which batches were sent and collected, which texts failed.

An SQLite file, so that it is whole after a crash at any point.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, texts INTEGER NOT NULL,
    file_id TEXT, batch_id TEXT, is_collected INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS failed (item INTEGER PRIMARY KEY, reason TEXT NOT NULL);
"""


class Sent(NamedTuple):
    """A batch that was sent, or whose file was."""

    number: int
    first: int  #: index of its first text
    last: int  #: of its last; every text between them that lacks a vector is in it
    texts: int
    file_id: str
    batch_id: str | None  #: None: a crash came between the two


class Ledger:
    """Used by one process, on one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        self._db.close()

    def fact(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def add(self, first: int, last: int, texts: int, file_id: str) -> int:
        """A file was uploaded. The number of its batch."""
        row = self._db.execute(
            "INSERT INTO batches (first, last, texts, file_id) VALUES (?, ?, ?, ?)", (first, last, texts, file_id)
        )
        return int(row.lastrowid or 0)

    def started(self, number: int, batch_id: str) -> None:
        self._db.execute("UPDATE batches SET batch_id = ? WHERE number = ?", (batch_id, number))

    def collected(self, number: int, failed: Iterable[tuple[int, str]]) -> None:
        """Its vectors are on disk."""
        with self._db:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO failed VALUES (?, ?)", failed)
            self._db.execute("UPDATE batches SET is_collected = 1 WHERE number = ?", (number,))

    def open_batches(self) -> list[Sent]:
        """Those that are not collected, oldest first."""
        columns = "number, first, last, texts, file_id, batch_id"
        rows = self._db.execute(f"SELECT {columns} FROM batches WHERE NOT is_collected ORDER BY number")  # noqa: S608
        return [Sent(*row) for row in rows]

    def failure(self, item: int) -> str | None:
        row = self._db.execute("SELECT reason FROM failed WHERE item = ?", (item,)).fetchone()
        return None if row is None else str(row[0])

    def forget_failures(self) -> None:
        """So that they are tried again."""
        self._db.execute("DELETE FROM failed")
