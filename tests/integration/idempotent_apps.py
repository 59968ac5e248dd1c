"""API processes in miniature for the tests of idempotency keys: the real app and Redis, a scripted queue."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import SecretStr
from quart import Quart

from api.app import create_app
from api.idempotent_run import Run
from tests.stack import Stack
from tests.support import wait_until
from tests.unit.fake_jobs import FakeJobs, Step
from tests.unit.routes_support import MESSAGES, settings

CHATS = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "chat/model", "messages": MESSAGES}
STREAM = BODY | {"stream": True}
OTHER = BODY | {"max_tokens": 3}


class Sent:
    """A request that is under way: its head and what has come of its body."""

    def __init__(self, app: Quart, path: str, body: Any, headers: dict[str, str]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_over = False
        self._arrived = asyncio.Event()
        self._left = asyncio.Event()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
        messages = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            else:
                self.body += message.get("body", b"")
                self.is_over = not message.get("more_body", False)
            self._arrived.set()

        self.task = asyncio.ensure_future(app(scope, receive, send))  # type: ignore[arg-type]

    async def until(self, predicate: Callable[["Sent"], object], timeout_s: float = 10.0) -> "Sent":
        """Until something of the answer makes it true."""
        async with asyncio.timeout(timeout_s):
            while not predicate(self):
                self._arrived.clear()
                await self._arrived.wait()
        return self

    async def text(self, text: str) -> "Sent":
        return await self.until(lambda sent: text.encode() in sent.body)

    async def whole(self, timeout_s: float = 10.0) -> "Sent":
        return await self.until(lambda sent: sent.is_over, timeout_s)

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait([self.task])

    @property
    def is_replay(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def code(self) -> str | None:
        code: str | None = json.loads(self.body)["error"]["code"]
        return code


class Api:
    """One API process."""

    def __init__(self, app: Quart, jobs: FakeJobs) -> None:
        self.app = app
        self.jobs = jobs
        self.sent: list[Sent] = []

    def post(self, body: Any, key: str, path: str = CHATS, **headers: str) -> Sent:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Content-Type": "application/json", "Idempotency-Key": key, **named}
        self.sent.append(Sent(self.app, path, body, given))
        return self.sent[-1]

    @property
    def n_runs(self) -> int:
        return len(self.jobs.submitted) + len(self.jobs.embedded)

    async def stop(self) -> None:
        await asyncio.gather(*(sent.leave() for sent in self.sent))
        await self.app.shutdown()


@asynccontextmanager
async def api_on(broker: Stack, *running: Step, **values: Any) -> AsyncIterator[Api]:
    """`running` are the steps of each generation (tests/unit/fake_jobs.py); `values` are settings."""
    jobs = FakeJobs()
    if running:
        jobs.running = list(running)
    url = SecretStr(values.pop("redis_url", broker.lis_env["LIS_REDIS_URL"]))
    app = create_app(settings(redis_url=url, **values), jobs)
    await app.startup()
    api = Api(app, jobs)
    try:
        yield api
    finally:
        await api.stop()


async def until(predicate: Callable[[], object], description: str, timeout_s: float = 10.0) -> None:
    await asyncio.to_thread(wait_until, predicate, description, timeout_s)


def same_answer(first: Any, second: Any) -> None:
    assert second.status == first.status
    assert second.body == first.body
    for name in ("content-type", "x-request-id", "x-queue-wait-ms"):
        assert second.headers.get(name) == first.headers.get(name)


def is_attached(broker: Stack, is_other_process: bool) -> bool:
    """A reader in the run's own process needs no time."""
    if not is_other_process:
        return True
    with broker.redis() as client:
        return bool(client.keys("lis:idem:readers:*"))


def runs_of(api: Api) -> list[Run]:
    idempotency: Any = api.app.after_serving_funcs[-1]
    return list(idempotency.__self__._runs.values())


def idem_keys(broker: Stack, kind: str = "*") -> list[bytes]:
    with broker.redis() as client:
        return list(client.keys(f"lis:idem:{kind}"))
