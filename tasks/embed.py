"""The task of one slice of an embeddings request."""

from typing import Any

import msgspec
from celery import Task

from tasks.celery import app
from tasks.contracts import EMBED_TASK, EmbedRequest
from tasks.worker import runtime


@app.task(name=EMBED_TASK, bind=True)
def embed(self: Task, message: dict[str, Any]) -> None:
    """Run an `EmbedRequest`; its vectors go to the API process that sent it."""
    runtime().run("embed", msgspec.convert(message, EmbedRequest), self.request.delivery_info["routing_key"])
