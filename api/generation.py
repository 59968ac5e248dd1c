"""One generation, from a parsed body to its response: shared by chat and completions."""

import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import cast

import msgspec
from quart import Request, Response

from api import sse
from api.edge import CLEANUP
from api.job_types import Jobs
from api.protocol.answers import AnswerFormat, Generation
from api.responses import json_response, set_request_id
from tasks.contracts import Delta, Finished, GenerateRequest, Lane, new_request_id

READ_TIMEOUT_HEADER = "x-stainless-read-timeout"  #: the OpenAI SDKs say how long they wait for the answer's head
QUEUE_WAIT_HEADER = "x-queue-wait-ms"


def read_patience_s(header: str | None) -> float | None:
    """Seconds the client waits. Anything but a positive number is as if it said nothing."""
    try:
        patience_s = float(header or "")
    except ValueError:
        return None
    return patience_s if math.isfinite(patience_s) and patience_s > 0 else None


async def respond(
    request: Request,
    jobs: Jobs,
    parsed: Generation,
    prefix: str,
    make_answer: Callable[[GenerateRequest], AnswerFormat],
) -> Response:
    """Run it and answer, whole or streaming. The head is held until a worker runs it, so refusals are HTTP statuses.

    The job is left when the request is over (edge.py), which cancels it if the client has gone.
    """
    job_request = msgspec.structs.replace(
        parsed.request,
        id=new_request_id(prefix),
        reply_to=jobs.api_id,
        lane=Lane.INTERACTIVE,
        created_ms=int(time.time() * 1000),
    )
    set_request_id(job_request.id)
    answer = make_answer(job_request)
    cleanup = cast(dict[str, AsyncExitStack], request.scope)[CLEANUP]
    patience_s = read_patience_s(request.headers.get(READ_TIMEOUT_HEADER))
    job = await cleanup.enter_async_context(jobs.submit(job_request, patience_s))
    await job.wait_started()
    reader = sse.EventReader(job.events())
    cleanup.push_async_callback(reader.aclose)
    if parsed.stream:
        stream = sse.stream_answer(reader, answer, job.queue_ms, job_request.id)
        response = Response(stream, content_type=sse.CONTENT_TYPE, headers=sse.HEADERS)
        response.timeout = None  # Quart cuts a response off after 60 s by default
    else:
        text, finished = await collect(reader)
        response = json_response(answer.whole(text, finished, job.queue_ms))
    response.headers[QUEUE_WAIT_HEADER] = str(round(job.queue_ms))
    return response


async def collect(reader: sse.EventReader) -> tuple[str, Finished]:
    """The whole text. Raises RequestFailed."""
    texts: list[str] = []
    while True:
        event = await reader.read()
        if isinstance(event, Finished):
            return "".join(texts), event
        if isinstance(event, Delta):
            texts.append(event.text)
