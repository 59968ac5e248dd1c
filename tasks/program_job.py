"""An embeddings job that a program put into the queue by itself: `app.send_task("tasks.embed", kwargs={...})`.

Its texts are embedded a slice at a time, each in a task of its own that sends the next one, so that chat gets in
between. What is done lies in Redis until the last slice makes the result of it.
"""

import base64
import struct
from typing import Annotated, Any, Literal

import msgspec

from tasks.ended import Kept

MAX_TEXTS = 2048  #: of one task: its message is sent anew for each slice, with what is left; `tasks.client` cuts lists
RESULT_TTL_S = 86_400


class JobFailed(Exception):
    """The job cannot be done; `str()` is for the program that sent it."""


class EmbedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keyword arguments of the task."""

    texts: list[str]
    model: str = ""  #: must be the worker's when given
    encoding_format: Literal["float", "base64"] = "float"  #: base64: of little-endian float32, as in the HTTP API
    callback_key: str = ""  #: a Redis list that the result is pushed to, as JSON, instead of Celery's result backend
    callback_ttl_s: Annotated[int, msgspec.Meta(ge=1, le=RESULT_TTL_S)] = 3600
    done: int = 0  #: texts that earlier slices have embedded; not for programs


def parse_job(arguments: dict[str, Any], max_texts: int = MAX_TEXTS) -> EmbedJob:
    """Raises JobFailed, naming the argument."""
    try:
        job = msgspec.convert(arguments, EmbedJob)
    except msgspec.ValidationError as exc:
        raise JobFailed(f"tasks.embed: {exc}") from None
    if not 0 < len(job.texts) <= max_texts:
        raise JobFailed(f"'texts' has {len(job.texts)} texts; it must have 1 to {max_texts}")
    if "" in job.texts:
        raise JobFailed(f"'texts[{job.done + job.texts.index('')}]' is empty")
    for position, text in enumerate(job.texts, job.done):
        if not is_unicode(text):
            raise JobFailed(f"'texts[{position}]' has half of a surrogate pair: it is not Unicode text")
    if job.callback_key.startswith("lis:"):
        raise JobFailed("'callback_key' must not begin with 'lis:': those keys are the server's")
    return job


def is_unicode(text: str) -> bool:
    """Half a character, as JSON's escapes can spell one, is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def slice_size(texts: list[str], max_chars: int, chars_each: int = 0) -> int:
    """How many of the texts are embedded now: at least one. `chars_each` is what a text costs beside its own."""
    chars = 0
    for count, text in enumerate(texts):
        chars += len(text) + chars_each
        if count and chars > max_chars:
            return count
    return len(texts)


def result_of(model: str, slices: list[tuple[int, int, Kept]], encoding_format: str) -> dict[str, Any]:
    """The task's result. `slices`: position of the first text, prompt tokens, vectors."""
    vectors: list[Any] = []
    for _, _, kept in slices:
        size = kept.width * 4
        rows = [kept.data[at : at + size] for at in range(0, len(kept.data), size)]
        if encoding_format == "base64":
            vectors += [base64.b64encode(row).decode() for row in rows]
        else:
            vectors += [list(struct.unpack(f"<{kept.width}f", row)) for row in rows]
    return {
        "model": model,
        "width": slices[0][2].width,
        "vectors": vectors,
        "truncated": [first + position for first, _, kept in slices for position in kept.truncated],
        "prompt_tokens": sum(tokens for _, tokens, _ in slices),
    }
