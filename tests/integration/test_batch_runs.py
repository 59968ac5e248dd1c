"""Batches on the whole service: as the endpoints answer, beside interactive requests, and through crashes."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import batch_crash_soak
from benchmarks.batch_client import answers, create, done_lines, embedding_line, retrieve, vectors_of, wait_ended
from tests.integration.chat_client import chat, wait_idle
from tests.service_calls import CHATS, COMPLETIONS, EMBEDDINGS, Service
from tests.stack import CHAT, EMBED, FAKE_ENV, Stack
from tests.support import wait_until

SECONDS = {"LIS_FAKE_PREFILL": "0.2"}  #: of a text or a prompt of more than 200 words
LONG = "word " * 210
VARYING = ("id", "created", "timings", "service_tier")  #: what two answers to one request differ in


@pytest.fixture(scope="module")
def slow_batches() -> Iterator[Stack]:
    """The fake engine, 0.2 s for a long text."""
    with Stack({**FAKE_ENV, **SECONDS}, keep=True) as stack:
        yield stack


def lines(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"custom_id": f"{n}", "method": "POST", "url": url, "body": body} for n, body in enumerate(bodies)]


def fixed(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in VARYING}


BODIES: dict[str, list[dict[str, Any]]] = {
    EMBEDDINGS: [
        {"model": EMBED, "input": "one text"},
        {"model": EMBED, "input": ["two texts", "in one line, of another length"]},
        {"model": EMBED, "input": "packed", "encoding_format": "base64"},
        {"model": EMBED, "input": "long " * 700},
    ],
    CHATS: [
        {"model": CHAT, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
        {"model": CHAT, "messages": [{"role": "user", "content": "two"}], "max_tokens": 3, "n": 2, "logprobs": True},
    ],
    COMPLETIONS: [
        {"model": CHAT, "prompt": "once upon", "max_tokens": 5},
        {"model": CHAT, "prompt": ["a", "b"], "max_tokens": 3, "echo": True},
    ],
}


@pytest.mark.parametrize("url", BODIES)
def test_a_line_is_answered_with_what_the_endpoint_answers(fake: Service, url: str) -> None:
    bodies = BODIES[url] * 20
    batch = wait_ended(fake.client, create(fake.client, lines(url, bodies)), 30.0)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", len(bodies))
    output = answers(fake.client, batch["output_file_id"])
    assert [item["custom_id"] for item in output] == [str(n) for n in range(len(bodies))]
    direct = [fake.client.post(url, json=body).json() for body in BODIES[url]]
    for n, item in enumerate(output):
        assert fixed(item["response"]["body"]) == fixed(direct[n % len(direct)])
    total = sum(item["response"]["body"]["usage"]["total_tokens"] for item in output)
    assert batch["usage"]["total_tokens"] == total


def test_a_line_that_fails_while_it_runs_is_in_the_error_file_as_the_endpoint_says_it(fake: Service) -> None:
    texts = [f"fine {n}" for n in range(30)]
    texts[7] = "a FAKE-ERROR here"
    made = [embedding_line(n, text) for n, text in enumerate(texts)]
    batch = wait_ended(fake.client, create(fake.client, made), 30.0)
    assert batch["request_counts"] == {"total": 30, "completed": 29, "failed": 1}
    (error,) = answers(fake.client, batch["error_file_id"])
    direct = fake.client.post(EMBEDDINGS, json=made[7]["body"])
    assert error["custom_id"] == "text-7"
    assert error["response"]["status_code"] == direct.status_code
    assert error["response"]["body"] == direct.json()


def test_an_interactive_request_starts_at_the_next_slice(slow_batches: Stack) -> None:
    stack = slow_batches
    with stack.client() as client:
        batch_id = create(client, [embedding_line(n, f"{n} {LONG}") for n in range(200)])
        wait_until(lambda: done_lines(retrieve(client, batch_id)) >= 8, "the batch runs", 20.0)
        waits_s = []
        for number in range(4):
            answer = chat(stack, f"hi {number}", stream=False, max_tokens=2).wait()
            assert answer.status == 200
            waits_s.append(int(answer.headers["x-queue-wait-ms"]) / 1000)
        assert max(waits_s) < 2.0, waits_s  # a slice is to take a second
        began_s = time.monotonic()
        client.post(f"/v1/batches/{batch_id}/cancel")
        batch = wait_ended(client, batch_id, 20.0)
        assert time.monotonic() - began_s < 3.0
        output, errors = answers(client, batch["output_file_id"]), answers(client, batch["error_file_id"])
    assert batch["status"] == "cancelled" and batch["cancelled_at"]
    assert len(output) >= 8 and len(output) + len(errors) == 200
    assert {item["error"]["code"] for item in errors} == {"batch_cancelled"}
    wait_idle(stack)


def test_a_text_that_kills_the_engine_fails_alone(slow_batches: Stack) -> None:
    with slow_batches.client() as client:
        texts = ["a FAKE-CRASH here", "fine"]
        batch_id = create(client, [embedding_line(n, text) for n, text in enumerate(texts)])
        batch = wait_ended(client, batch_id, 120.0)
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        (error,) = answers(client, batch["error_file_id"])
        assert (error["custom_id"], error["response"]["body"]["error"]["code"]) == ("text-0", "worker_lost")
        assert vectors_of(answers(client, batch["output_file_id"])[0]["response"]["body"]).shape[0] == 1
    slow_batches.wait_ready()


def test_a_batch_outlives_deaths_of_worker_api_and_broker() -> None:
    """A small benchmarks/batch_crash_soak.py."""
    with Stack({**FAKE_ENV, "LIS_FAKE_PREFILL": "0.015"}, keep=True) as stack:
        soak = batch_crash_soak.run(stack, 300, 2, 1, seed=4, checked=20, long_every=1)
        assert soak.breaches == []
        assert sum(soak.killed.values()) == 3
