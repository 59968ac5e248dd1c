"""Where a Hub file lives in the models directory, and how it is known to be whole.

`<models>/<owner>/<repo>/<file>` is only ever a whole, verified file. Beside it, in `.hub/`, lie its record (what was
verified, so that the next start asks nobody), its partial download and its lock.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tasks.hub import HubFile

logger = logging.getLogger(__name__)

HASH_CHUNK_BYTES = 1024 * 1024
PART_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)


class Place(NamedTuple):
    """The paths of one Hub file. `path` is its final name."""

    path: Path
    repo: str
    name: str

    @property
    def _hidden(self) -> Path:
        return self.path.parent / ".hub"

    @property
    def record(self) -> Path:
        return self._hidden / f"{self.path.name}.json"

    @property
    def lock(self) -> Path:
        return self._hidden / f"{self.path.name}.lock"

    def partial(self, etag: str) -> Path:
        """The download of this very content: another revision's partial is never continued."""
        return self._hidden / f"{self.path.name}.{etag[:16]}.incomplete"

    def prepare(self) -> None:
        self._hidden.mkdir(parents=True, exist_ok=True)

    def remove_other_partials(self, etag: str) -> None:
        """Free what downloads of other revisions left. Call with the lock held."""
        for path in self._hidden.glob("*.incomplete"):
            if path.name.startswith(f"{self.path.name}.") and path != self.partial(etag):
                path.unlink(missing_ok=True)

    def is_verified(self) -> bool:
        """The file is there and has not been touched since it was checked against the Hub. Asks no network."""
        try:
            record = json.loads(self.record.read_text())
            stat = self.path.stat()
        except (OSError, ValueError):
            return False
        known = {"repo": self.repo, "name": self.name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        return isinstance(record, dict) and known.items() <= record.items()

    def mark_verified(self, file: HubFile) -> None:
        """Write the record. A directory that cannot be written only costs the check at the next start."""
        stat = self.path.stat()
        record = file._asdict() | {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        try:
            self.prepare()
            scratch = self.record.with_suffix(f".{os.getpid()}.tmp")
            scratch.write_text(json.dumps(record))
            scratch.replace(self.record)
        except OSError as exc:
            logger.warning(
                "cannot note that the model file is verified", extra={"path": str(self.path), "reason": str(exc)}
            )


def places(models_dir: Path, repo: str, name: str) -> list[Place]:
    """Where the file may be; the first is where downloads go.

    A file that somebody copied straight into the models directory counts too, and is never overwritten. Not a part of
    a split one, for its parts must lie together.
    """
    own = Place(models_dir.joinpath(*repo.split("/"), *name.split("/")), repo, name)
    copied = Place(models_dir / PurePosixPath(name).name, repo, name)
    return [own, copied] if len(part_names(name)) == 1 else [own]


def part_names(name: str) -> list[str]:
    """All parts of a split GGUF, in order (llama.cpp opens the first and finds the others beside it); else the name."""
    match = PART_NAME.fullmatch(name)
    if not match:
        return [name]
    return [f"{match['stem']}-{part:05d}-of-{match['parts']}.gguf" for part in range(1, int(match["parts"]) + 1)]


def is_same_content(path: Path, file: HubFile, go_on: Callable[[int], None]) -> bool:
    """Size and hash are the Hub's. `go_on` gets the number of bytes hashed so far, and may raise to stop it.

    The Hub's etag is the sha256 of LFS and xet files, and git's blob hash of small ones. A mirror may have others:
    then only the size can be compared.
    """
    size = path.stat().st_size
    if size != file.size:
        return False
    if re.fullmatch(r"[0-9a-f]{64}", file.etag):
        digest = hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", file.etag):
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        logger.warning("the hub gives no hash of the file: only its size was compared", extra={"file": file.name})
        return True
    done = 0
    with path.open("rb", buffering=0) as stream:
        while data := stream.read(HASH_CHUNK_BYTES):
            digest.update(data)
            done += len(data)
            go_on(done)
    return digest.hexdigest() == file.etag
