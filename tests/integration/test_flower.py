"""Flower, as `celery -A tasks flower` starts it, beside a real broker, worker and API (fake engine)."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tasks.contracts import Lane, models_key, program_queue, queue_name, queue_names
from tests.integration.chat_client import FOREVER, chat, embed, is_running, wait_idle, worker_state
from tests.integration.test_program_jobs import program, send
from tests.stack import CHAT, EMBED, FAKE_ENV, Process, Stack, free_port
from tests.support import wait_until

MODELS = models_key(CHAT, EMBED)
SECRET = "the launch code is 0000"
Json = dict[str, Any]


class Flower:
    """Its HTTP API."""

    def __init__(self, stack: Stack, **env: str) -> None:
        port = free_port()
        command = [sys.executable, "-m", "celery", "-A", "tasks", "flower", "--address=127.0.0.1", f"--port={port}"]
        self.process = Process(
            command, {**stack.env(), "FLOWER_UNAUTHENTICATED_API": "true", **env}, stack.dir / f"flower-{port}.log"
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api", timeout=20.0)
        wait_until(self._shows_worker, "Flower shows the worker", 60.0)
        (self.worker,) = self.get("/workers")

    def _shows_worker(self) -> bool:
        try:
            return len(self.http.get("/workers", params={"refresh": "1"}).json()) == 1
        except (httpx.HTTPError, ValueError):
            return False

    def get(self, path: str, **params: str) -> Json:
        answer: Json = self.http.get(path, params=params).json()
        return answer

    def post(self, path: str) -> httpx.Response:
        return self.http.post(path)

    def tasks(self) -> Json:
        return self.get("/tasks", limit="1000")

    def wait_for(self, task_id: str, state: str) -> Json:
        wait_until(lambda: self.tasks().get(task_id, {}).get("state") == state, f"{task_id} is {state}", 20.0)
        task: Json = self.tasks()[task_id]
        return task

    def waiting(self) -> dict[str, int]:
        return {queue["name"]: queue["messages"] for queue in self.get("/queues/length")["active_queues"]}

    def stop(self) -> None:
        self.http.close()
        self.process.stop()


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    """Two slots."""
    pace = {"LIS_FAKE_TOKEN": "0.02", "LIS_PARALLEL": "2", "LIS_BUSY_TIMEOUT": "60"}
    with Stack({**FAKE_ENV, **pace}, keep=True) as stack:
        yield stack


@pytest.fixture(scope="module")
def flower(service: Stack) -> Iterator[Flower]:
    """Its events are on: it has seen a task."""
    shown = Flower(service)
    try:
        wait_until(lambda: see_one(service, shown), "events are on", 30.0)
        yield shown
    finally:
        shown.stop()


def see_one(stack: Stack, flower: Flower) -> bool:
    return chat(stack, "hello", max_tokens=1).wait().id in flower.tasks()


def test_a_task_has_its_requests_id_its_state_and_its_runtime(service: Stack, flower: Flower) -> None:
    call = chat(service, f"{SECRET}, says", max_tokens=20).wait()
    task = flower.wait_for(call.id, "SUCCESS")
    assert (task["name"], task["args"], task["kwargs"]) == ("tasks.chat", CHAT, "{}")
    assert 0.3 < task["runtime"] < 5.0
    vectors = embed(service, [SECRET, "b"]).wait()
    task = flower.wait_for(vectors.headers["x-request-id"], "SUCCESS")
    assert (task["name"], task["args"]) == ("tasks.embed", f"{EMBED}, 2 texts")


def test_no_prompt_is_anywhere_while_it_runs_or_after(service: Stack, flower: Flower) -> None:
    with chat(service, f"{SECRET} {FOREVER}") as call:
        call.wait_text()
        running = flower.get("/workers", refresh="1", workername=flower.worker)[flower.worker]
        assert [task["id"] for task in running["active"]] == [call.id]
        with program(service) as app:
            job = send(app, [SECRET] * 3, model=EMBED)
            job.get(timeout=20)
        task = flower.wait_for(job.id, "SUCCESS")
        assert task["args"] == f"{EMBED}, 3 texts"
        failed = send_wrong(service)
        flower.wait_for(failed, "FAILURE")
        seen = [json.dumps(running), json.dumps(flower.tasks()), flower.http.get(f"/task/info/{call.id}").text]
    wait_idle(service)
    seen += [json.dumps(flower.tasks()), service.log_text(), flower.process.log.read_text()]
    assert not any(SECRET in text for text in seen)


def send_wrong(stack: Stack) -> str:
    with program(stack) as app:
        return str(send(app, [SECRET, ""]).id)


def test_all_queues_are_shown_with_their_lengths(service: Stack, flower: Flower) -> None:
    assert set(flower.waiting()) == {*queue_names(MODELS), program_queue(EMBED)}
    with chat(service, FOREVER) as one, chat(service, FOREVER) as other:
        one.wait_text()
        other.wait_text()
        waiting = [chat(service, "hello", max_tokens=1) for _ in range(3)]
        lane = queue_name(Lane.INTERACTIVE, MODELS)
        wait_until(lambda: flower.waiting()[lane] == 3, "three wait")
    assert all(call.wait().has_done for call in waiting)


def test_a_worker_that_is_busy_answers_pings(service: Stack, flower: Flower) -> None:
    with chat(service, FOREVER) as one, chat(service, FOREVER) as other:
        one.wait_text()
        other.wait_text()
        with program(service) as app:
            assert app.control.ping(timeout=2.0) == [{flower.worker: {"ok": "pong"}}]
        assert flower.get("/workers", status="true") == {flower.worker: True}


def test_the_pool_shrinks_to_one_and_grows_back_to_the_slots(service: Stack, flower: Flower) -> None:
    def limit() -> int:
        pool: Json = flower.get("/workers", refresh="1")[flower.worker]["stats"]["pool"]
        return int(pool["max-concurrency"])

    wait_idle(service)
    assert flower.post(f"/worker/pool/grow/{flower.worker}").status_code == 403, "more than the engine has slots"
    assert flower.post(f"/worker/pool/shrink/{flower.worker}").status_code == 200
    assert limit() == 1
    wait_until(lambda: (state := worker_state(service)) and state.slots == 1, "estimates know of it")
    assert flower.post(f"/worker/pool/shrink/{flower.worker}").status_code == 403
    with chat(service, FOREVER) as holder:
        holder.wait_text()
        second = chat(service, "hello", max_tokens=1)
        wait_until(lambda: flower.waiting()[queue_name(Lane.INTERACTIVE, MODELS)] == 1, "it waits for the one slot")
        assert is_running(service, 1)
        assert flower.post(f"/worker/pool/grow/{flower.worker}").status_code == 200
        assert second.wait().has_done
    assert limit() == 2
    wait_idle(service)


def test_what_threads_cannot_do_is_refused_and_harms_nothing(service: Stack, flower: Flower) -> None:
    for control in ("pool/restart", "pool/autoscale"):
        assert flower.post(f"/worker/{control}/{flower.worker}?min=1&max=2").status_code >= 400
    assert chat(service, "hello", max_tokens=1).wait().has_done


def test_shutdown_lets_what_runs_end(service: Stack, flower: Flower) -> None:
    """The stack starts the worker again, as the supervisor does."""
    assert service.worker is not None
    pid = service.worker.pid
    call = chat(service, FOREVER, max_tokens=100)
    call.wait_text()
    assert flower.post(f"/worker/shutdown/{flower.worker}").status_code == 200
    late = chat(service, "hello", max_tokens=1)
    assert call.wait().has_done, "two seconds, less than LIS_DRAIN_TIMEOUT"
    assert late.wait().has_done, "by the next worker"
    assert service.worker.pid != pid
    service.wait_ready()


def test_prompts_are_shown_when_told_to() -> None:
    with Stack({**FAKE_ENV, "LIS_LOG_PROMPTS": "true"}) as stack:
        shown = Flower(stack)
        try:
            wait_until(lambda: see_one(stack, shown), "events are on", 30.0)
            call = chat(stack, f"{SECRET}, says", max_tokens=1).wait()
            assert SECRET in shown.wait_for(call.id, "SUCCESS")["args"]
        finally:
            shown.stop()
