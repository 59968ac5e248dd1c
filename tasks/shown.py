"""What monitors are shown of a task: Flower, `celery inspect`, events and Celery's own log lines."""

from typing import Any

from celery.worker.request import Request

from tasks.settings import load_settings

MAX_CHARS = 1000

_shows_prompts: bool | None = None


def shows_prompts() -> bool:
    """LIS_LOG_PROMPTS, read once."""
    global _shows_prompts
    if _shows_prompts is None:
        _shows_prompts = load_settings().log_prompts
    return _shows_prompts


class ShownRequest(Request):
    """A task's message in the worker. Its arguments are shown in short, with their text only for LIS_LOG_PROMPTS."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        shown = summary(self._args, self._kwargs, shows_prompts())
        self._argsrepr, self._kwargsrepr = shown, "{}"
        self._request_dict |= {"argsrepr": shown, "kwargsrepr": "{}"}

    def info(self, safe: bool = False) -> dict[str, Any]:
        """For `celery inspect active`, which asks for the arguments themselves."""
        answer: dict[str, Any] = super().info(safe=True)
        return answer


def summary(args: Any, kwargs: Any, with_text: bool = False) -> str:
    """The model, and how many texts. Of anything that is not ours, nothing."""
    first = args[0] if args and isinstance(args[0], dict) else kwargs
    if not isinstance(first, dict):
        return ""
    model, texts = first.get("model"), first.get("texts")
    parts = [model[:MAX_CHARS]] if isinstance(model, str) and model else []
    if isinstance(texts, list):
        parts.append(f"{len(texts)} texts" if len(texts) != 1 else "1 text")
    if with_text:
        said = next((first[name] for name in ("messages", "prompts", "texts") if first.get(name)), "")
        parts.append(str(said)[:MAX_CHARS])
    return ", ".join(parts)
