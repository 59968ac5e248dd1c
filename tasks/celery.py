"""The Celery app of the workers, the producer of the API, and where the broker is.

`celery -A tasks worker` finds `app` here; its settings are in worker_config.py, read when first needed.
"""

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from celery import Celery

from tasks.settings import Settings, SettingsInvalid

app = Celery("tasks")
app.config_from_object("worker_config")


def embedded_url_file(settings: Settings) -> Path:
    """Where `local-inference-server` leaves the URL of the broker it runs; readable by its user only."""
    return settings.data_dir / "broker" / "url"


def redis_url(settings: Settings) -> str:
    """LIS_REDIS_URL, or the embedded broker of a running `local-inference-server` with the same LIS_DATA_DIR.

    Raises SettingsInvalid when there is neither.
    """
    url = settings.redis_url.get_secret_value()
    if url:
        return url
    try:
        return embedded_url_file(settings).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise SettingsInvalid(
            "LIS_REDIS_URL is not set and no embedded broker runs here; set it, or start `local-inference-server` first"
        ) from None


def celery_broker_url(url: str) -> str:
    """kombu writes a unix socket's URL as redis+socket://, redis-py as unix://; the rest is the same in both."""
    if not url.startswith("unix://"):
        return url
    parts = urlsplit(url)
    user = (
        f"{quote(unquote(parts.username or ''))}:{quote(unquote(parts.password or ''))}@" if "@" in parts.netloc else ""
    )
    database = dict(item.partition("=")[::2] for item in parts.query.split("&") if item).get("db", "0")
    return f"redis+socket://{user}{parts.path}?virtual_host={database}"


def producer(settings: Settings) -> Celery:
    """An app that only sends tasks, for the API: a broker that refuses or hangs costs at most about a second.

    Celery's own defaults retry for 6 s when refused and wait for ever on a frozen broker.
    """
    sender = Celery("tasks-producer", set_as_current=False)
    sender.conf.update(
        broker_url=celery_broker_url(redis_url(settings)),
        broker_transport_options={"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "max_retries": 0},
        broker_connection_retry=False,
        broker_pool_limit=4,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_create_missing_queues=True,
        task_publish_retry=False,
    )
    return sender
