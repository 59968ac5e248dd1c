"""For Python programs that send embeddings by Celery: cuts a long input into jobs and joins their vectors."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from celery import Celery

from tasks.contracts import EMBED_TASK, program_queue


def embed(
    app: Celery,
    texts: Iterable[str],
    model: str,
    *,
    texts_per_job: int = 256,
    jobs_ahead: int = 4,
    timeout_s: float = 3600.0,
) -> Iterator[list[float]]:
    """The vectors of any number of texts, in their order; at most `jobs_ahead` jobs of them are held in memory.

    `app` needs the workers' Redis as its broker, and as its result backend. `timeout_s` is for each job. Raises
    JobFailed, celery.exceptions.TimeoutError, and what Celery raises when Redis is away. What was sent and is not
    wanted any more is revoked.
    """
    rest = iter(texts)
    jobs: deque[Any] = deque()
    try:
        while True:
            while len(jobs) < jobs_ahead and (some := list(islice(rest, texts_per_job))):
                kwargs = {"texts": some, "model": model}
                jobs.append(app.send_task(EMBED_TASK, kwargs=kwargs, queue=program_queue(model), ignore_result=False))
            if not jobs:
                return
            result = jobs[0].get(timeout=timeout_s)
            jobs.popleft().forget()
            yield from result["vectors"]
    finally:
        for job in jobs:
            job.revoke()
