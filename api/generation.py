"""One generation, from a parsed body to its response: shared by chat, completions and responses."""

import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple, TypeVar, cast

import msgspec
from quart import Request, Response

from api import sse
from api.auth import caller_of
from api.deadlines import deadline_of, note_deadline
from api.edge import CLEANUP
from api.errors import QUEUE_WAIT_HEADER
from api.job_types import Job, Jobs
from api.protocol.answers import AnswerFormat, Generation, Json, StreamFormat
from api.protocol.choices import Answer, AnswerBuilder
from api.protocol.service_tier import HEADERS as TIER_HEADERS
from api.protocol.service_tier import read_lane
from api.responses import json_response, set_request_id
from tasks.contracts import ChoiceFinished, Delta, Finished, GenerateRequest, Lane, ToolCall, new_request_id

READ_TIMEOUT_HEADER = "x-stainless-read-timeout"  #: the OpenAI SDKs say how long they wait for the answer's head

Parsed = TypeVar("Parsed")


def read_patience_s(header: str | None) -> float | None:
    """Seconds the client waits. Anything but a positive number is as if it said nothing."""
    try:
        patience_s = float(header or "")
    except ValueError:
        return None
    return patience_s if math.isfinite(patience_s) and patience_s > 0 else None


class Running(NamedTuple):
    """A generation that a worker has taken."""

    job: Job
    reader: sse.EventReader


def with_lane(request: Request, parse: Callable[[Json], Parsed]) -> Callable[[Json], tuple[Parsed, Lane]]:
    """`parse`, and beside its result the lane that the body or a header asks for."""
    header = next((value for name in TIER_HEADERS if (value := request.headers.get(name))), None)

    def parse_both(body: Json) -> tuple[Parsed, Lane]:
        note_deadline(request, body)
        return parse(body), read_lane(body, header)

    return parse_both


def prepared(
    request: Request, generate: GenerateRequest, jobs: Jobs, prefix: str, lane: Lane = Lane.INTERACTIVE
) -> GenerateRequest:
    """The request with its id, which the answer's header gets, the way back, and its place in the queue."""
    job_request = msgspec.structs.replace(
        generate,
        id=new_request_id(prefix),
        reply_to=jobs.api_id,
        lane=lane,
        share=caller_of(request).share,
        caller=caller_of(request).name,
        deadline_ms=deadline_of(request),
        created_ms=int(time.time() * 1000),
    )
    set_request_id(job_request.id)
    return job_request


async def run(request: Request, jobs: Jobs, job_request: GenerateRequest) -> Running:
    """Submit, and return when a worker runs it, so that refusals are HTTP statuses.

    The job is left when the request is over (edge.py), which cancels it if the client has gone.
    """
    cleanup = cast(dict[str, AsyncExitStack], request.scope)[CLEANUP]
    patience_s = read_patience_s(request.headers.get(READ_TIMEOUT_HEADER))
    job = await cleanup.enter_async_context(jobs.submit(job_request, patience_s))
    await job.wait_started()
    reader = sse.EventReader(job.events())
    cleanup.push_async_callback(reader.aclose)
    cast(dict[str, sse.EventReader], request.scope)[sse.READER] = reader
    return Running(job, reader)


def streaming(running: Running, answer: StreamFormat) -> Response:
    """The answer as an event stream."""
    job = running.job
    stream = sse.stream_answer(running.reader, answer, job.queue_ms, job.id)
    response = Response(stream, content_type=sse.CONTENT_TYPE, headers=sse.HEADERS)
    response.timeout = None  # Quart cuts a response off after 60 s by default
    return with_wait(response, job)


def with_wait(response: Response, job: Job) -> Response:
    response.headers[QUEUE_WAIT_HEADER] = str(round(job.queue_ms))
    return response


async def collect(reader: sse.EventReader) -> Answer:
    """The whole answer. Raises RequestFailed."""
    builder = AnswerBuilder()
    while True:
        event = await reader.read()
        if isinstance(event, Finished):
            return builder.end(event)
        if isinstance(event, Delta | ToolCall | ChoiceFinished):
            builder.add(event)


async def respond(
    request: Request,
    jobs: Jobs,
    parsed: Generation,
    lane: Lane,
    prefix: str,
    make_answer: Callable[[Generation], AnswerFormat],
) -> Response:
    """Run it and answer, whole or streaming."""
    job_request = prepared(request, parsed.request, jobs, prefix, lane)
    answer = make_answer(parsed._replace(request=job_request))
    running = await run(request, jobs, job_request)
    if parsed.stream:
        return streaming(running, answer)
    whole = answer.whole(await collect(running.reader), running.job.queue_ms)
    return with_wait(json_response(whole), running.job)
