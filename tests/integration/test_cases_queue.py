"""Reported bugs of queues: waiting, refusal, cancels, on the whole service. The engine makes 20 tokens a second."""

from concurrent.futures import ThreadPoolExecutor

from tests.integration.chat_client import FOREVER, Call, assert_served, chat, embed, queue_len, wait_idle
from tests.service_calls import Service
from tests.stack import Stack
from tests.support import wait_until

BUSY_TIMEOUT_S = 2.0  #: of `slow`


def assert_refused(call: Call, after_s: float) -> None:
    assert call.status == 503, call.body or call.broken
    assert call.error is not None
    assert call.error["code"] == "server_busy"
    assert call.headers["retry-after"].isdigit()
    assert abs(call.took_s - after_s) < 1.0


def test_requests_of_every_kind_are_refused_at_the_limit_and_never_run(slow: Service) -> None:
    """QUE-01, QUE-02"""
    stack = slow.stack
    wait_idle(stack)
    with chat(stack, FOREVER) as holder:
        holder.wait_text()
        before = stack.log_text().count(" started request_id=")
        calls = [chat(stack, "hello", stream=number % 2 == 0) for number in range(3)]
        calls += [embed(stack, ["a"]), embed(stack, ["a"] * 9)]
        for call in calls:
            assert_refused(call.wait(), BUSY_TIMEOUT_S)
    wait_idle(stack)
    assert stack.log_text().count(" started request_id=") == before
    assert_served(stack)


def test_an_answer_may_take_longer_than_the_wait_for_it(slow: Service) -> None:
    """QUE-04: the limit counts waiting only. No answer is cut after 60 s either: test_http_edges.py."""
    call = chat(slow.stack, FOREVER, stream=False, max_tokens=50).wait()
    assert call.status == 200
    assert len(call.text.split()) == 50
    assert call.took_s > BUSY_TIMEOUT_S


def test_requests_left_or_refused_while_no_worker_ran_are_not_run_later(frail: Stack) -> None:
    """QUE-06"""
    started = frail.started_count()
    frail.lose_worker()
    calls = [chat(frail, FOREVER, stream=number == 0) for number in range(3)]
    impatient = chat(frail, "hello", headers={"x-stainless-read-timeout": "1.0"})
    wait_until(lambda: queue_len(frail) == 4, "all wait")
    for call in calls:
        call.leave()
    assert_refused(impatient.wait(), 0.5)
    frail.start_worker()
    frail.wait_ready()
    assert_served(frail)
    wait_idle(frail)
    assert frail.started_count() == started + 1


def test_many_cancels_at_once_leave_the_worker_as_it_was(slow: Service) -> None:
    """QUE-07: 30 that wait and the one that runs."""
    stack = slow.stack
    wait_idle(stack)
    engines, started = stack.engine_pids(), stack.started_count()
    holder = chat(stack, FOREVER)
    holder.wait_text()
    waiting = [chat(stack, FOREVER, stream=number % 2 == 0) for number in range(30)]
    wait_until(lambda: queue_len(stack) == 30, "all wait", 1.9)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Call.leave, [*waiting, holder]))
    assert_served(stack)
    assert stack.engine_pids() == engines
    assert stack.started_count() == started + 2
