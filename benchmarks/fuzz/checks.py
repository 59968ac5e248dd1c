"""What an answer must be, however bad the request was."""

import json
import re
from typing import Any

import jsonschema

from benchmarks.fuzz.wire import Answer
from tasks.setting_types import PROJECT_ROOT

JSON_TYPE, STREAM_TYPE = "application/json", "text/event-stream"
MEMBERS = ["message", "type", "param", "code"]
#: of the inside: tracebacks, files, names of exceptions
INSIDE = re.compile(
    rf"{re.escape(str(PROJECT_ROOT))}|Traceback \(most|File \"|site-packages|/usr/|/home/|\.py\b"
    r"|\b[A-Z][A-Za-z]+(Error|Exception)\b|<class '"
)


class Checks:
    """`document`: the OpenAPI description that the server itself gave."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = {"components": document["components"]}
        self._schemas: dict[tuple[str, str], dict[str, Any]] = {}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                good = operation["responses"].get("200", {}).get("content", {}).get(JSON_TYPE)
                if good is not None:
                    self._schemas[method.upper(), path] = good["schema"]

    def problem(self, answer: Answer) -> str | None:
        """What is wrong with the answer, if anything."""
        if answer.status >= 500 and not self._is_honest(answer):
            return f"{answer.status}: {answer.body[:300]!r}"
        if "x-request-id" not in answer.headers:
            return f"{answer.status} without x-request-id"
        if answer.method == "HEAD" or answer.status == 204:
            return None
        if answer.status >= 400:
            return self._error_problem(answer)
        if answer.headers.get("content-type", "").startswith(STREAM_TYPE):
            return self._stream_problem(answer.body.decode())
        return self._value_problem(answer)

    def _is_honest(self, answer: Answer) -> bool:
        retry = answer.headers.get("retry-after", "")
        return answer.status == 503 and retry.isdecimal() and 1 <= int(retry) <= 60

    def _error_problem(self, answer: Answer) -> str | None:
        if answer.headers.get("content-type") != JSON_TYPE:
            return f"{answer.status} is no JSON: {answer.headers}"
        try:
            value = json.loads(answer.body)
        except ValueError:
            return f"{answer.status} is no JSON: {answer.body[:200]!r}"
        if answer.path.endswith("/health") and list(value)[:1] == ["status"]:
            return None
        return envelope_problem(value)

    def _stream_problem(self, text: str) -> str | None:
        frames = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if not frames:
            return "a stream without a frame"
        values = [json.loads(frame) for frame in frames if frame != "[DONE]"]
        errors = [value for value in values if "error" in value and "choices" not in value and "type" not in value]
        problems = [envelope_problem(value) for value in errors]
        problems += ["an internal error in a stream" for value in errors if value["error"]["type"] == "server_error"]
        return next((problem for problem in problems if problem), None)

    def _value_problem(self, answer: Answer) -> str | None:
        schema = self._schema_of(answer)
        if schema is None:
            return None
        validator = jsonschema.Draft202012Validator(self._components | schema)
        wrong = next(validator.iter_errors(json.loads(answer.body)), None)
        return f"{answer.path}: not as described: {wrong.message[:300]}" if wrong else None

    def _schema_of(self, answer: Answer) -> dict[str, Any] | None:
        path = "/" + answer.path.partition("?")[0].strip("/").removeprefix("v1/")
        if path.startswith("/models/"):
            path = "/models/{model_id}"
        return self._schemas.get((answer.method, path))


def envelope_problem(value: Any) -> str | None:
    if not isinstance(value, dict) or list(value) != ["error"] or list(value["error"]) != MEMBERS:
        return f"no error envelope: {str(value)[:200]}"
    error = value["error"]
    if not isinstance(error["message"], str) or not error["message"] or not isinstance(error["type"], str):
        return f"an empty error: {error}"
    found = INSIDE.search(error["message"])
    return f"an error tells of the inside: {error['message'][:300]}" if found else None
