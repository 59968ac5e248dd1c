"""The task of one slice of an embeddings request, and of a program's own job."""

from typing import Any

import msgspec
from celery import Task

from tasks.celery import app
from tasks.contracts import EMBED_TASK, EmbedRequest
from tasks.program_job import JobFailed
from tasks.worker import runtime


@app.task(
    name=EMBED_TASK,
    bind=True,
    Request="tasks.shown:ShownRequest",
    ignore_result=False,  # of a program's job; the API asks for none (api/dispatch.py)
    throws=(JobFailed,),
    resultrepr_maxsize=64,
)
def embed(self: Task, message: dict[str, Any] | None = None, **job: Any) -> dict[str, Any] | None:
    """Run an `EmbedRequest`; its vectors go to the API process that sent it. Or run a program's job (`EmbedJob`), given
    by keywords; its vectors are the task's result. Raises JobFailed when that cannot be done."""
    if message is None:
        return runtime().run_job(self, job)
    runtime().run("embed", msgspec.convert(message, EmbedRequest), self.request.delivery_info["routing_key"])
    return None
