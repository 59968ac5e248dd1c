"""Downloads one Hub file so that it can go on where it broke off, whatever broke it.

Bytes are appended to a partial file whose length is the offset to go on from: after a broken connection, a stop, or
kill -9. It gets its final name only when its size and hash are the Hub's. Two processes take turns by a lock file.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from tasks.engines.base import Cancelled, ModelLoadError
from tasks.hub import Hub, HubFile, HubUnavailable, ModelSource, RangeRefused
from tasks.model_files import Place, is_same_content

logger = logging.getLogger(__name__)

LOCK_POLL_S = 0.5
MEGABYTE = 1e6


class Patience(NamedTuple):
    """How long a Hub that does not answer is asked again."""

    lookups: int = 4  #: tries of one question; with the waits between them 3.5 s where the answer is at once no
    reads: int = 7  #: tries of a download in a row that bring no new byte: half a minute, a router's restart
    first_wait_s: float = 0.5  #: doubled each time
    longest_wait_s: float = 8.0

    def wait_s(self, failures: int, asked_s: float | None = None) -> float:
        """Before the next try, after so many in a row that failed. What the Hub asks for is heeded up to 30 s."""
        doubled = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (failures - 1))
        return max(doubled, min(asked_s or 0.0, 30.0))


PATIENCE = Patience()


class Job(NamedTuple):
    """One file to download."""

    source: ModelSource
    file: HubFile
    place: Place

    @property
    def partial(self) -> Path:
        return self.place.partial(self.file.etag)

    def missing_bytes(self) -> int:
        """What is left to download: the partial file has its part of the disk already."""
        try:
            return max(0, self.file.size - self.partial.stat().st_size)
        except OSError:
            return self.file.size


#: called with what is being done ("downloading", "verifying", …) and how many bytes of the file are done
Tell = Callable[[str, int], None]


def download(hub: Hub, job: Job, tell: Tell, stop: threading.Event, patience: Patience) -> None:
    """Put the verified file at its final name. Raises ModelLoadError, and Cancelled soon after `stop` is set."""
    with _disk_errors(job), _exclusive(job, tell, stop):
        if job.place.is_verified():
            return  # another process was faster
        job.place.remove_other_partials(job.file.etag)
        for _ in range(2):
            _complete(hub, job, tell, stop, patience)
            if is_same_content(job.partial, job.file, lambda done: _go_on(tell, "verifying", done, stop)):
                _finish(job)
                return
            # a proxy that alters what passes, bad memory, a power cut while the partial file was written
            logger.warning("downloaded file is damaged: its hash is not the Hub's", extra={"file": job.file.name})
            job.partial.unlink()
    raise ModelLoadError(
        f"{job.file.repo}/{job.file.name} arrived damaged twice: its hash is not the one of the Hub, {job.file.etag}"
    )


def _complete(hub: Hub, job: Job, tell: Tell, stop: threading.Event, patience: Patience) -> None:
    """Append to the partial file until it has the whole size."""
    with job.partial.open("ab", buffering=0) as out:
        furthest, failures = out.tell(), 0
        while out.tell() < job.file.size:
            failure = _append(hub, job, out, tell, stop)
            if out.tell() >= job.file.size:
                break
            failures = 1 if out.tell() > furthest else failures + 1
            furthest = max(furthest, out.tell())
            if failures >= patience.reads:
                raise ModelLoadError(
                    f"download of {job.file.repo}/{job.file.name} broke off at {out.tell() / MEGABYTE:,.0f} of "
                    f"{job.file.size / MEGABYTE:,.0f} MB: {failure}; the next start goes on from there"
                )
            logger.warning("download broke off, trying again", extra={"file": job.file.name, "reason": str(failure)})
            if stop.wait(patience.wait_s(failures, failure.retry_after_s)):
                raise Cancelled


def _append(hub: Hub, job: Job, out: FileIO, tell: Tell, stop: threading.Event) -> HubUnavailable:
    """One request: append what comes. Returns why it came to an end."""
    try:
        with closing(hub.read_from(job.source, job.file, out.tell())) as chunks:
            for chunk in chunks:
                if chunk.offset != out.tell():
                    if chunk.offset:
                        raise RangeRefused
                    _empty(out)  # `Range` was ignored
                # a regular file takes less than it was given only when the disk is full
                if out.write(chunk.data) != len(chunk.data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                _go_on(tell, "downloading", out.tell(), stop)
                if out.tell() >= job.file.size:
                    break
    except HubUnavailable as exc:
        return exc
    except RangeRefused:
        _empty(out)
        return HubUnavailable("the hub refuses to go on where the download broke off")
    return HubUnavailable("the connection was closed early")


def _empty(out: FileIO) -> None:
    out.seek(0)
    out.truncate()


def _go_on(tell: Tell, doing: str, done_bytes: int, stop: threading.Event) -> None:
    if stop.is_set():
        raise Cancelled
    tell(doing, done_bytes)


def _finish(job: Job) -> None:
    """Give the verified partial file its final name, on disk before anybody can see it."""
    with job.partial.open("rb") as stream:
        os.fsync(stream.fileno())
    job.partial.replace(job.place.path)
    job.place.mark_verified(job.file)


@contextmanager
def _exclusive(job: Job, tell: Tell, stop: threading.Event) -> Generator[None]:
    """Hold the file's lock; the system lets go of it when the process dies."""
    from filelock import FileLock, Timeout  # huggingface_hub's own lock library

    job.place.prepare()
    lock = FileLock(job.place.lock)
    while True:
        try:
            lock.acquire(timeout=LOCK_POLL_S)
        except Timeout:
            _go_on(tell, "another process downloads", job.file.size - job.missing_bytes(), stop)
        else:
            break
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _disk_errors(job: Job) -> Generator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            # somebody else filled the disk meanwhile. It may be the broker's disk too, so the partial file goes
            needed = job.missing_bytes()
            job.partial.unlink(missing_ok=True)
            raise ModelLoadError(
                f"no space left for {job.file.repo}/{job.file.name} in LIS_MODELS_DIR: "
                f"{needed / MEGABYTE:,.0f} MB were still missing; what was there of it is removed"
            ) from exc
        raise ModelLoadError(
            f"cannot write the model to {job.place.path.parent} (LIS_MODELS_DIR): {exc.strerror}"
        ) from exc
