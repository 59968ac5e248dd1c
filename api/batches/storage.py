"""The folder or bucket under `LIS_FILES_URL`. Every method blocks: call it on a thread.

What has a name is whole. A local file is written under `tmp/`, synced and renamed; an object store puts an object in
one piece; elsewhere a file is written under `tmp/` and moved. Names are relative to the root, `/` between folders.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tasks.settings import Settings, SettingsInvalid

TMP = "tmp"
BLOCK_BYTES = 1024 * 1024
#: of object stores: an object is there once it is whole, and never before
WHOLE_PUTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


class UnusableStorage(Exception):
    """No such file system, a package that is missing, or no right to write. `str()` says which, without the URL."""


class Entry(NamedTuple):
    """One file of a folder."""

    name: str  #: without the folder
    bytes: int


class Storage:
    """`url` as fsspec has it; a plain path is a local folder."""

    def __init__(self, url: str) -> None:
        """Raises UnusableStorage."""
        try:
            fs, root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as exc:
            raise UnusableStorage(str(exc)) from None
        self._fs: Any = fs
        self._root = str(root).rstrip("/")
        self._is_local = isinstance(fs, LocalFileSystem)
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        self._puts_whole = not WHOLE_PUTS.isdisjoint(protocols)

    def prepare(self) -> None:
        """Write and remove something. Raises UnusableStorage."""
        name = f"{TMP}/{secrets.token_hex(8)}"
        try:
            self.write(name, b"x")
            self.remove(name)
        except Exception as exc:  # every file system has its own
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
            raise UnusableStorage(f"it cannot be written to: {reason}") from exc

    # -- writing -----------------------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> None:
        """Make the file, or replace it."""
        if self._puts_whole:
            self._fs.pipe_file(self._path(name), data)
            return
        with self.writer(name) as out:
            out.write(data)

    def create(self, name: str, data: bytes) -> bool:
        """Make the file unless it is there. False: it is. Of two that do so at a time, one gets True.

        Where a file system has neither links nor conditional puts, two at the very same moment may both get True.
        """
        path = self._path(name)
        if not self._is_local:
            try:
                self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True
        temporary = self._temporary()
        try:
            _write_synced(temporary, data)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as exc:
                if exc.errno not in NO_LINKS:
                    raise
                if Path(path).exists():
                    return False
                Path(temporary).replace(path)
            _sync_folder(path)
            return True
        finally:
            Path(temporary).unlink(missing_ok=True)

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """A file to write to; it gets its name at the end of the block, and is gone when the block raises."""
        pending = self.begin()
        try:
            yield pending.out
            pending.finish(name)
        finally:
            pending.discard()

    def begin(self) -> "Pending":
        """A file to write to whose name comes later."""
        return Pending(self, self._temporary())

    # -- reading -----------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        return cast(bytes, self._fs.cat_file(self._path(name)))

    def open(self, name: str, offset: int = 0) -> BinaryIO:
        """For reading, from `offset` on. Raises FileNotFoundError."""
        file = cast(BinaryIO, self._fs.open(self._path(name), "rb", **self._blocks()))
        if offset:
            file.seek(offset)
        return file

    def entries(self, folder: str) -> list[Entry]:
        """Its files, by name. Empty: there is no such folder."""
        try:
            found = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        files = [
            Entry(str(info["name"]).rsplit("/", 1)[-1], int(info["size"] or 0)) for info in found if _is_file(info)
        ]
        return sorted(files)

    def tree(self, folder: str) -> list[str]:
        """The names of all files in a folder and in its folders, from the folder on."""
        path = self._path(folder)
        try:
            found = self._fs.find(path)
        except FileNotFoundError:
            return []
        return [str(name)[len(path) + 1 :] for name in found]

    def used_bytes(self) -> int:
        """Of all files, those that are being written too."""
        try:
            found = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return 0
        return sum(int(info["size"] or 0) for info in found.values() if _is_file(info))

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, name: str) -> bool:
        """False: it is not there."""
        try:
            self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def remove_folder(self, folder: str) -> None:
        """With all that is in it; nothing happens when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(folder), recursive=True)

    def sweep_temporary(self, older_than_s: float) -> None:
        """Remove what a process that is gone had begun to write."""
        for entry in self.entries(TMP):
            with contextlib.suppress(ValueError):
                if int(entry.name.split("-", 1)[0], 16) < time.time() - older_than_s:
                    self.remove(f"{TMP}/{entry.name}")

    # -- inside ------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _temporary(self) -> str:
        """A path nobody else has; it tells its time, which not every file system does."""
        path = self._path(f"{TMP}/{int(time.time()):x}-{secrets.token_hex(8)}")
        self._fs.makedirs(self._path(TMP), exist_ok=True)
        return path

    def _blocks(self) -> dict[str, Any]:
        return {} if self._is_local else {"block_size": BLOCK_BYTES}

    def open_to_write(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(path, "wb"))

    def name_file(self, temporary: str, name: str) -> None:
        """Give a file that is written its name, in the place of what had it."""
        path = self._path(name)
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        if self._is_local:
            Path(temporary).replace(path)
            _sync_folder(path)
        else:
            self._fs.mv(temporary, path)

    def remove_path(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    @property
    def is_local(self) -> bool:
        return self._is_local


class Pending:
    """A file that has no name yet."""

    def __init__(self, storage: Storage, temporary: str) -> None:
        self._storage = storage
        self._temporary = temporary
        self._is_named = False
        self.out = storage.open_to_write(temporary)

    def finish(self, name: str) -> None:
        self.out.flush()
        if self._storage.is_local:
            os.fsync(self.out.fileno())
        self.out.close()
        self._storage.name_file(self._temporary, name)
        self._is_named = True

    def discard(self) -> None:
        """After `finish` nothing; else the file is gone. Never raises: what stays is swept later."""
        if self._is_named:
            return
        with contextlib.suppress(Exception):
            self.out.close()
        with contextlib.suppress(Exception):
            self._storage.remove_path(self._temporary)


def open_storage(settings: Settings) -> Storage:
    """What LIS_FILES_URL names. Writes nothing yet. Raises SettingsInvalid."""
    url = settings.files_url.get_secret_value() or str(settings.data_dir.resolve() / "files")
    try:
        return Storage(url)
    except UnusableStorage as exc:
        scheme = url.partition("://")[0]
        raise SettingsInvalid(f"LIS_FILES_URL begins with '{scheme}://'; {exc}") from None


def _is_file(info: dict[str, Any]) -> bool:
    return bool(info["type"] == "file")


def _write_synced(path: str, data: bytes) -> None:
    with Path(path).open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _sync_folder(path: str) -> None:
    """So that the name outlives a power cut. Not every system can do that to a folder."""
    with contextlib.suppress(OSError):
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
