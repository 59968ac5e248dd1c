"""The task of one chat or text completion."""

from typing import Any

import msgspec
from celery import Task

from tasks.celery import app
from tasks.contracts import CHAT_TASK, GenerateRequest
from tasks.worker import runtime


@app.task(name=CHAT_TASK, bind=True, Request="tasks.shown:ShownRequest")
def chat(self: Task, message: dict[str, Any]) -> None:
    """Run a `GenerateRequest`; its frames go to the API process that sent it."""
    runtime().run("run", msgspec.convert(message, GenerateRequest), self.request.delivery_info["routing_key"])
