"""docker-compose.redis.yml: what a broker must have so that no request is lost and nobody else reads it."""

from typing import Any

import yaml  # type: ignore[import-untyped]

from tasks.setting_types import PROJECT_ROOT


def service() -> dict[str, Any]:
    text = (PROJECT_ROOT / "docker-compose.redis.yml").read_text(encoding="utf-8")
    (only,) = yaml.safe_load(text)["services"].values()
    assert isinstance(only, dict)
    return only


def options() -> dict[str, str]:
    program, *words = service()["command"]
    assert program == "valkey-server"
    assert all(isinstance(word, str) for word in words)  # an unquoted `yes` is a boolean to YAML
    return dict(zip(words[::2], words[1::2], strict=True))


def test_requests_survive_a_restart_and_are_never_evicted() -> None:
    given = options()
    assert (given["--appendonly"], given["--appendfsync"]) == ("yes", "everysec")
    assert given["--maxmemory-policy"] == "noeviction"
    assert given["--maxmemory"] == "512mb"
    assert service()["mem_limit"] == "1g"
    assert service()["volumes"] == ["data:/data"]
    assert service()["restart"] == "unless-stopped"


def test_there_is_no_broker_without_a_password() -> None:
    assert options()["--requirepass"].startswith("${LIS_REDIS_PASSWORD:?")
    assert service()["environment"]["REDISCLI_AUTH"] == options()["--requirepass"]


def test_it_listens_on_loopback_only() -> None:
    assert service()["ports"] == ["127.0.0.1:${LIS_REDIS_PORT:-6379}:6379"]


def test_its_health_is_checked_and_its_image_pinned_to_a_major_version() -> None:
    assert "ping" in service()["healthcheck"]["test"][1]
    assert service()["image"] == "valkey/valkey:9-alpine"
