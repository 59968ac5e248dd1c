"""What monitors are shown of a task: Flower, `celery inspect`, events and Celery's own log lines."""

from typing import Any

from celery.worker.request import Request

from tasks.settings import load_settings

_shows_prompts: bool | None = None


def shows_prompts() -> bool:
    """LIS_LOG_PROMPTS, read once."""
    global _shows_prompts
    if _shows_prompts is None:
        _shows_prompts = load_settings().log_prompts
    return _shows_prompts


class ShownRequest(Request):
    """A task's message in the worker. Unless LIS_LOG_PROMPTS is set, its arguments are shown without any text."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not shows_prompts():
            shown = summary(self._args, self._kwargs)
            self._argsrepr, self._kwargsrepr = shown, "{}"
            self._request_dict |= {"argsrepr": shown, "kwargsrepr": "{}"}

    def info(self, safe: bool = False) -> dict[str, Any]:
        """For `celery inspect active`, which asks for the arguments themselves."""
        answer: dict[str, Any] = super().info(safe=safe or not shows_prompts())
        return answer


def summary(args: Any, kwargs: Any) -> str:
    """The model, and how many texts. Of anything that is not ours, nothing."""
    first = args[0] if args and isinstance(args[0], dict) else kwargs
    if not isinstance(first, dict):
        return ""
    model, texts = first.get("model"), first.get("texts")
    parts = [model[:80]] if isinstance(model, str) and model else []
    if isinstance(texts, list):
        parts.append(f"{len(texts)} texts" if len(texts) != 1 else "1 text")
    return ", ".join(parts)
