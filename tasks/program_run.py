"""Runs one slice of a program's job (tasks/program_job.py) and sends the next."""

from collections.abc import Callable
from typing import Any

import msgspec
from celery import Task
from celery.exceptions import Ignore
from kombu.exceptions import OperationalError

from tasks.contracts import EmbedRequest, Lane
from tasks.ended import LOST, Ended, Kept
from tasks.program_job import EmbedJob, JobFailed, result_of, slice_size
from tasks.program_slices import Slices
from tasks.retry import until_redis_answers

MARKS = 2  #: tokens that a model puts around a text
CHARS_PER_TOKEN = 3  #: fewer than most texts have, so that a slice is rather too small
MAX_RUNS = 2  #: of a slice whose engine died

Embed = Callable[[EmbedRequest], Ended]


class ProgramRun:
    """One delivery of a job's message."""

    def __init__(self, task: Task, job: EmbedJob, slices: Slices, token: str, served: str) -> None:
        """`served` is the name of the worker's embedding model; empty: it has none."""
        self._task = task
        self._id: str = task.request.id
        self._job = job
        self._slices = slices
        self._token = token
        self._model = served

    def run(self, embed: Embed, max_tokens: int) -> dict[str, Any] | None:
        """The job's result when this was its last slice. Raises Ignore after any other one, and JobFailed."""
        job = self._job
        try:
            if not until_redis_answers(lambda: self._slices.take(self._id, job.done, self._token), "claim"):
                raise Ignore
            if not self._model:
                raise JobFailed("this worker serves no embedding model")
            if job.model not in ("", self._model):
                raise JobFailed(f"the model '{job.model}' is not served; this worker has '{self._model}'")
            count = slice_size(job.texts, max_tokens * CHARS_PER_TOKEN, MARKS * CHARS_PER_TOKEN)
            self._embed(embed, job.texts[:count])
            if count == len(job.texts):
                return self._result()
        except JobFailed as exc:
            self._push({"id": self._id, "error": str(exc)})
            raise
        self._send_rest(count)
        raise Ignore

    def _result(self) -> dict[str, Any] | None:
        job = self._job
        slices = until_redis_answers(lambda: self._slices.all(self._id), "slices")
        result = result_of(self._model, slices, job.encoding_format)
        if len(result["vectors"]) != job.done + len(job.texts):
            raise JobFailed("it took so long that its first vectors have lapsed")
        if job.callback_key:
            self._push({"id": self._id, **result})
            return None
        until_redis_answers(lambda: self._slices.let_go(self._id), "let go")
        return result

    def _embed(self, embed: Embed, texts: list[str]) -> None:
        request = EmbedRequest(id=self._id, model=self._model, reply_to="", lane=Lane.BATCH, attempt=1, texts=texts)
        for _ in range(MAX_RUNS):
            ended = embed(request)
            if ended.outcome != LOST:
                break
        kept = ended.kept or Kept(error="the engine that embedded it died")
        if ended.outcome != "finished":
            raise JobFailed(kept.error or "it was cancelled")
        done, tokens = self._job.done, ended.usage.prompt_tokens
        until_redis_answers(lambda: self._slices.keep(self._id, done, tokens, kept), "keep vectors")

    def _send_rest(self, count: int) -> None:
        """Under the same id, behind what waits on the queue. Sent twice, the second is dropped by its claim."""
        job = msgspec.structs.replace(self._job, texts=self._job.texts[count:], done=self._job.done + count)
        message = self._task.signature_from_request(args=(), kwargs=msgspec.to_builtins(job))
        until_redis_answers(lambda: _publish(message), "the next slice")
        until_redis_answers(lambda: self._slices.end(self._id, self._job.done), "claim")

    def _push(self, answer: dict[str, Any]) -> None:
        job = self._job
        if job.callback_key:
            data = msgspec.json.encode(answer)
            until_redis_answers(
                lambda: self._slices.end_with(self._id, job.done, job.callback_key, data, job.callback_ttl_s),
                "callback",
            )


def refuse(slices: Slices, job_id: str, arguments: dict[str, Any], why: str) -> None:
    """Tell the list that a job's program looks at, where one can be made out in the job's arguments."""
    key = arguments.get("callback_key")
    if isinstance(key, str) and key and not key.startswith("lis:"):
        data = msgspec.json.encode({"id": job_id, "error": why})
        until_redis_answers(lambda: slices.end_with(job_id, 0, key, data, 3600), "callback")


def _publish(message: Any) -> None:
    """Raises redis.RedisError, as all that `until_redis_answers` repeats."""
    import redis

    try:
        message.apply_async()
    except (OperationalError, OSError) as exc:
        raise redis.ConnectionError(str(exc)) from exc
