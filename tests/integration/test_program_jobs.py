"""Embeddings that programs send by Celery themselves, on real workers with the fake engine."""

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from celery import Celery

from tasks.celery import celery_broker_url
from tasks.client import embed
from tasks.contracts import program_queue
from tasks.program_job import JobFailed
from tests.integration.chat_client import chat
from tests.stack import EMBED, FAKE_ENV, Stack
from tests.support import wait_until

QUEUE = program_queue(EMBED)
EXAMPLE = Path(__file__).parents[1] / "examples" / "embed_by_celery.py"
SLOW = "slow " * 201  #: a text that takes LIS_FAKE_PREFILL


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    """Slices of some 12 tokens; a slow text takes 0.3 s."""
    pace = {"LIS_FAKE_PREFILL": "0.3", "LIS_BATCH_SLICE_TOKENS": "12", "LIS_BUSY_TIMEOUT": "60"}
    with Stack({**FAKE_ENV, **pace}, keep=True) as stack:
        yield stack


@pytest.fixture
def app(service: Stack) -> Iterator[Celery]:
    service.wait_ready()
    with program(service) as app:
        yield app


def program(stack: Stack) -> Celery:
    url = celery_broker_url(stack.lis_env["LIS_REDIS_URL"])
    return Celery(broker=url, backend=url, set_as_current=False)


def send(app: Celery, texts: Any, **options: Any) -> Any:
    return app.send_task("tasks.embed", kwargs={"texts": texts, **options}, queue=QUEUE)


def direct(stack: Stack, texts: list[str]) -> Any:
    """The vectors of the same texts through the API."""
    with stack.client() as client:
        answer = client.post("/v1/embeddings", json={"model": EMBED, "input": texts}).json()
    return np.array([row["embedding"] for row in answer["data"]], dtype=np.float32)


def test_the_result_has_the_vectors_of_the_api_in_order(service: Stack, app: Celery) -> None:
    texts = [f"text {number}" for number in range(40)]
    result = send(app, texts, model=EMBED).get(timeout=30)
    assert np.allclose(result["vectors"], direct(service, texts), atol=1e-6)
    assert (result["model"], result["width"], result["truncated"]) == (EMBED, 384, [])
    assert result["prompt_tokens"] == 80


def test_base64_holds_the_same_numbers(app: Celery) -> None:
    plain = send(app, ["a", "b"]).get(timeout=30)["vectors"]
    coded = send(app, ["a", "b"], encoding_format="base64").get(timeout=30)["vectors"]
    assert [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in coded] == plain


def test_a_callback_key_gets_the_answer_once_and_lapses(service: Stack, app: Celery) -> None:
    key = f"mine:{secrets.token_hex(4)}"
    job = send(app, ["a"] * 20, callback_key=key, callback_ttl_s=60)
    with service.redis() as client:
        _, answer = client.blpop([key], timeout=30)
        assert len(json.loads(answer)["vectors"]) == 20
        assert json.loads(answer)["id"] == job.id
        failing = send(app, ["", "a"], callback_key=key, callback_ttl_s=60)
        with pytest.raises(JobFailed):
            failing.get(timeout=30)
        error = json.loads(client.blpop([key], timeout=30)[1])
        assert error == {"id": failing.id, "error": "'texts[0]' is empty"}
        assert client.llen(key) == 0
        assert 0 < client.ttl(f"lis:job:{job.id}") <= 600


def test_an_answer_that_has_no_place_is_a_failure_and_not_lost_in_silence(service: Stack, app: Celery) -> None:
    key = f"mine:{secrets.token_hex(4)}"
    with service.redis() as client:
        client.set(key, "a text", ex=60)
        with pytest.raises(JobFailed, match="callback_key"):
            send(app, ["a"], callback_key=key).get(timeout=30)
        assert client.get(key) == b"a text"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"texts": []}, "1 to 2048"),
        ({"texts": ["a"] * 2049}, "1 to 2048"),
        ({"texts": ["a", ""]}, r"texts\[1\]"),
        ({"texts": "a"}, r"\$.texts"),
        ({"texts": [1]}, r"\$.texts\[0\]"),
        ({}, "texts"),
        ({"texts": ["a"], "model": "other"}, "'other' is not served"),
        ({"texts": ["a"], "encoding_format": "hex"}, "encoding_format"),
        ({"texts": ["a"], "callback_key": "lis:workers"}, "callback_key"),
        ({"texts": ["a"], "callback_ttl_s": 0}, "callback_ttl_s"),
        ({"texts": ["a"], "text": 1}, "text"),
        ({"texts": ["a"] * 9 + ["FAKE-ERROR"]}, "."),
    ],
)
def test_what_cannot_be_done_is_told(app: Celery, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(JobFailed, match=told):
        app.send_task("tasks.embed", kwargs=arguments, queue=QUEUE).get(timeout=30)


def test_a_long_job_lets_chat_in_between(service: Stack, app: Celery) -> None:
    """20 slices of 0.3 s; the chat waits for one of them."""
    job = send(app, [SLOW] * 20)
    with service.redis() as client:
        wait_until(lambda: client.hlen(f"lis:job:{job.id}") >= 2, "it runs")
        assert chat(service, "hello", max_tokens=2).wait().has_done
        done = client.hlen(f"lis:job:{job.id}")
    assert done < 12, "the chat did not wait for the job"
    assert len(job.get(timeout=60)["vectors"]) == 20


def test_two_jobs_take_turns(service: Stack, app: Celery) -> None:
    long, short = send(app, [SLOW] * 12), send(app, ["a"])
    assert short.get(timeout=30)["width"] == 384
    with service.redis() as client:
        assert client.hlen(f"lis:job:{long.id}") < 6
    assert len(long.get(timeout=60)["vectors"]) == 12


@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_a_killed_worker_goes_on_where_it_was_and_embeds_nothing_twice(
    service: Stack, app: Celery, victim: str
) -> None:
    texts = [f"{SLOW} {number}" for number in range(8)]
    job = send(app, texts)
    with service.redis() as client:
        wait_until(lambda: client.hlen(f"lis:job:{job.id}") >= 2, "it runs")
    assert service.worker is not None
    os.kill(service.worker.pid if victim == "worker" else service.engine_pids()[0], signal.SIGKILL)
    result = job.get(timeout=60)
    assert np.allclose(result["vectors"], direct(service, texts), atol=1e-6)
    assert service.log_text().count(f"embedding started request_id={job.id}") <= 9
    service.wait_ready()


def test_a_message_that_comes_twice_runs_once(service: Stack, app: Celery) -> None:
    """As after a broken connection: the second copy neither runs nor replaces the result."""
    job_id = f"twice-{secrets.token_hex(4)}"
    kwargs = {"texts": [SLOW] * 3}
    jobs = [app.send_task("tasks.embed", kwargs=kwargs, queue=QUEUE, task_id=job_id) for _ in range(3)]
    assert len(jobs[0].get(timeout=30)["vectors"]) == 3
    send(app, ["the queue is empty"]).get(timeout=30)
    assert len(app.AsyncResult(job_id).get(timeout=5)["vectors"]) == 3
    assert service.log_text().count(f"embedding started request_id={job_id}") == 3


def test_a_broker_that_is_away_costs_the_job_nothing(service: Stack, app: Celery) -> None:
    job = send(app, [SLOW] * 6)
    with service.redis() as client:
        wait_until(lambda: client.hlen(f"lis:job:{job.id}") >= 1, "it runs")
    service.restart_broker()
    with program(service) as again:
        assert len(again.AsyncResult(job.id).get(timeout=60)["vectors"]) == 6
    service.wait_ready()


def test_the_api_leaves_no_results_behind(service: Stack, app: Celery) -> None:
    def results() -> set[bytes]:
        with service.redis() as client:
            return set(client.keys("celery-task-meta-*"))

    before = results()
    direct(service, ["a", "b", "c", "d", "e"])
    assert chat(service, "hello", max_tokens=2).wait().has_done
    assert results() <= before


def test_any_number_of_texts_come_in_order(service: Stack, app: Celery) -> None:
    texts = [f"number {number}" for number in range(50)]
    vectors = list(embed(app, iter(texts), EMBED, texts_per_job=7, jobs_ahead=3))
    assert np.allclose(vectors, direct(service, texts), atol=1e-6)


def test_the_readmes_example_runs(service: Stack) -> None:
    service.wait_ready()
    url = service.lis_env["LIS_REDIS_URL"]
    # kombu and redis-py write a socket's URL each in a way of its own: the example has TCP
    code = EXAMPLE.read_text("utf-8").replace("redis.Redis.from_url(REDIS)", f"redis.Redis.from_url({url!r})")
    env = {"PATH": os.environ["PATH"], "REDIS_URL": celery_broker_url(url)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "3 vectors of 384 numbers" in done.stdout
