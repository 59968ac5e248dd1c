"""Files and batches of an OpenAI-compatible server, over HTTP."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from api.batch_command.problems import CommandError, ServerError

FINAL = frozenset({"completed", "failed", "cancelled", "expired"})
PATIENCE_S = 900.0  #: a server that has answered before may be away for so long: it is being restarted
PAUSE_S = 2.0
MAX_PAUSE_S = 60.0
TRY_AGAIN = frozenset({0, 408, 429, 502, 503, 504})  #: 0: no answer
#: of a slow disk at the other end; the batch itself is waited for by polling
TIMEOUT = httpx2.Timeout(120.0, connect=10.0)

Json = dict[str, Any]


class BatchApi:
    """One server. Every method raises ServerError; a server that goes away is waited for."""

    def __init__(self, server: str, key: str, on_trouble: Callable[[str], None]) -> None:
        """`on_trouble` is told, once each time, what a call waits for."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.server = base_url(server)
        try:
            self._http = httpx2.Client(base_url=self.server, headers=headers, timeout=TIMEOUT)
        except (httpx2.InvalidURL, UnicodeEncodeError, ValueError) as exc:
            raise CommandError(f"--server or --key cannot be used: {exc}") from None
        self._on_trouble = on_trouble
        self._has_answered = False

    def close(self) -> None:
        self._http.close()

    def embedding_model(self) -> str:
        """The one embedding model of the server. Raises CommandError when there is none, or a choice."""
        models = self._json("GET", "/models").get("data", [])
        found = [model["id"] for model in models if (model.get("meta") or {}).get("kind") == "embedding"]
        found = found or [model["id"] for model in models if "embed" in model["id"].lower()]
        if len(found) == 1:
            return str(found[0])
        if not found:
            raise CommandError("the server names no embedding model; name one with --model")
        raise CommandError(f"the server has several embedding models; choose with --model: {', '.join(found)}")

    def upload(self, path: Path) -> str:
        """The file's id. It is streamed from disk."""

        def send() -> Any:
            with path.open("rb") as file:
                parts = {"file": (path.name, file, "application/jsonl")}
                return self._http.post("/files", data={"purpose": "batch"}, files=parts)

        return str(self._patiently(send).json()["id"])

    def create(self, file_id: str) -> Json:
        """A batch of embeddings."""
        body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
        return self._json("POST", "/batches", json=body)

    def batch(self, batch_id: str) -> Json:
        return self._json("GET", f"/batches/{batch_id}")

    def batches(self, limit: int, after: str | None = None) -> list[Json]:
        """Newest first."""
        params = {"limit": limit} | ({"after": after} if after else {})
        return list(self._json("GET", "/batches", params=params).get("data", []))

    def batch_of_file(self, file_id: str) -> Json | None:
        """The batch that was made of an input file, if any."""
        after = None
        while page := self.batches(100, after):
            for batch in page:
                if batch["input_file_id"] == file_id:
                    return batch
            after = page[-1]["id"]
        return None

    def cancel(self, batch_id: str) -> Json:
        return self._json("POST", f"/batches/{batch_id}/cancel")

    def delete_file(self, file_id: str) -> None:
        """It may stay: the server forgets it in time."""
        try:
            self._http.delete(f"/files/{file_id}")
        except httpx2.HTTPError:
            return

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        """A file's bytes, as they come."""
        try:
            with self._http.stream("GET", f"/files/{file_id}/content") as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refusal(answer)
                yield answer.iter_bytes()
        except httpx2.HTTPError as exc:
            raise ServerError(f"the connection to {self.server} broke: {exc or type(exc).__name__}") from None

    def _json(self, method: str, path: str, **options: Any) -> Json:
        answer = self._patiently(lambda: self._http.request(method, path, **options))
        try:
            value: Json = answer.json()
            return value
        except ValueError:
            raise ServerError(
                f"{self.server}{path} did not answer with JSON; is it an OpenAI-compatible API?"
            ) from None

    def _patiently(self, call: Callable[[], Any]) -> Any:
        give_up_at = time.monotonic() + (PATIENCE_S if self._has_answered else 0.0)
        is_told = False
        while True:
            pause_s = PAUSE_S
            try:
                answer = call()
                self._has_answered = True
                if answer.status_code < 400:
                    return answer
                error = _refusal(answer)
                pause_s = _retry_after_s(answer)
            except httpx2.HTTPError as exc:
                error = ServerError(f"{self.server} does not answer: {exc or type(exc).__name__}")
            if error.status not in TRY_AGAIN or time.monotonic() + pause_s > give_up_at:
                raise error
            if not is_told:
                self._on_trouble(f"{error}; trying again")
                is_told = True
            time.sleep(pause_s)


def base_url(server: str) -> str:
    """`http://host:8000` and `http://host:8000/v1/` are the same server."""
    url = server.rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    return url if url.partition("://")[2].count("/") else f"{url}/v1"


def _refusal(answer: Any) -> ServerError:
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = answer.reason_phrase or "no reason given"
    return ServerError(f"the server refused: {message} ({answer.status_code})", answer.status_code)


def _retry_after_s(answer: Any) -> float:
    try:
        return min(MAX_PAUSE_S, max(0.1, float(answer.headers.get("retry-after", PAUSE_S))))
    except ValueError:
        return PAUSE_S
