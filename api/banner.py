"""What the user sees when the server is ready."""

from typing import TextIO

from tasks.settings import Settings


def print_banner(settings: Settings, out: TextIO) -> None:
    """URL, model names, and a curl line that works when it is pasted."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)  # noqa: S104
    base = f"http://{host}:{settings.port}"
    is_one = settings.api_key.get_secret_value() and "," not in settings.api_key.get_secret_value()
    value = "$LIS_API_KEY" if is_one else "YOUR_KEY"
    key = f' -H "Authorization: Bearer {value}"' if settings.has_api_key() else ""
    body = f'{{"model": "{settings.model_alias}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'
    lines = [
        "",
        f"  Ready at {base}/v1",
        f"  chat model:      {settings.model_alias}",
        f"  embedding model: {settings.embedding_model_alias if settings.embedding_enabled else '(none)'}",
        "",
        f"  curl {base}/v1/chat/completions -H 'Content-Type: application/json'{key} \\",
        f"       -d '{body}'",
        "",
        "  Ctrl-C stops it.",
        "",
    ]
    out.write("\n".join(lines) + "\n")
    out.flush()
