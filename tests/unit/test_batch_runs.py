"""Batches from their first line to their files: the runner on real stores, with a lane that answers at once."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.batches.errors import StorageFull
from api.batches.records import BatchRecord, BatchStatus, advanced
from api.batches.runner import embeddings, generations, lane, run
from api.batches.runner.windows import EMBEDDINGS, GENERATIONS
from tests.unit.batch_runs import POISON, VAGUE, WRONG, FakeLane, World, until, vectors
from tests.unit.batch_support import line
from tests.unit.fake_jobs import CHAT, vector

N_LINES = 40
SMALL = EMBEDDINGS._replace(lines=8)
CHATS = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small windows, no pauses."""
    monkeypatch.setattr(embeddings.EmbeddingLines, "sizes", SMALL)
    monkeypatch.setattr(generations.GenerationLines, "sizes", GENERATIONS._replace(lines=3))
    for module, name in (
        (embeddings, "DEATH_PAUSE_S"),
        (generations, "DEATH_PAUSE_S"),
        (run, "LOOK_S"),
        (run, "TELL_S"),
        (run, "STORAGE_PAUSE_S"),
        (lane, "CHECK_S"),
    ):
        monkeypatch.setattr(module, name, 0.01)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def texts(count: int = N_LINES) -> list[str]:
    return [f"text {n} " + "word " * (n * 7 % 30) for n in range(count)]


def lines_of(given: list[Any], **body: Any) -> bytes:
    return b"".join(line(f"line-{n}", input=text, **body) for n, text in enumerate(given))


def chat_line(name: str, said: str, **body: Any) -> bytes:
    return line(name, CHATS, model=CHAT, messages=[{"role": "user", "content": said}], **body)


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [item["custom_id"] for item in lines]


# -- embeddings ------------------------------------------------------------------------------------


async def test_every_line_is_answered_once_in_order_with_its_own_vector(world: World) -> None:
    batch = await world.ended(await world.batch(lines_of(texts())))
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.counts.total, batch.counts.completed, batch.counts.failed) == (N_LINES, N_LINES, 0)
    assert batch.finalizing_at and batch.completed_at and batch.error_file_id is None
    output = await world.lines(batch.output_file_id)
    assert ids(output) == [f"line-{n}" for n in range(N_LINES)]
    for text, item in zip(texts(), output, strict=True):
        assert np.array_equal(vectors(item)[0], vector(text))
        assert item["response"]["status_code"] == 200 and item["error"] is None
        assert item["response"]["body"]["usage"]["prompt_tokens"] == len(text.split())
    assert batch.tokens.input == sum(len(text.split()) for text in texts())
    assert len({item["id"] for item in output}) == N_LINES
    assert (await world.files.list_parts(batch.id)) == []


async def test_texts_of_a_window_go_sorted_by_length(world: World) -> None:
    await world.ended(await world.batch(lines_of(texts(8))))
    sent = [len(text) for part in world.lane.slices for text in part]
    assert sent == sorted(sent, reverse=True) and len(sent) == 8


async def test_two_slices_are_in_flight_and_no_more(world: World) -> None:
    world.lane.busy_s = 10.0
    await world.ended(await world.batch(lines_of(["x " * 1000 for _ in range(20)])))
    assert len(world.lane.slices) == 20
    assert world.lane.most_in_flight == 2


async def test_a_line_of_several_texts_is_one_answer(world: World) -> None:
    given = [["a", "bb " * 40, "c"], "single", ["d"]]
    batch = await world.ended(await world.batch(lines_of(given, encoding_format="float")))
    output = await world.lines(batch.output_file_id)
    assert [len(vectors(item)) for item in output] == [3, 1, 1]
    assert np.array_equal(vectors(output[0])[1], vector("bb " * 40))
    assert [item["index"] for item in output[0]["response"]["body"]["data"]] == [0, 1, 2]


async def test_a_worker_that_tells_no_tokens_of_texts_still_gives_right_sums(world: World) -> None:
    world.lane.tells_tokens = False
    batch = await world.ended(await world.batch(lines_of(texts(8))))
    output = await world.lines(batch.output_file_id)
    shares = [item["response"]["body"]["usage"]["prompt_tokens"] for item in output]
    assert sum(shares) == sum(len(text.split()) for text in texts(8)) and min(shares) > 0


@pytest.mark.parametrize(
    ("trap", "status", "code"), [(WRONG, 400, None), (VAGUE, 500, "internal_error"), (POISON, 500, "worker_lost")]
)
async def test_only_the_line_that_does_it_fails(world: World, trap: str, status: int, code: str | None) -> None:
    given: list[Any] = texts(8)
    given[5] = ["fine", f"this one is {trap}"]
    batch = await world.ended(await world.batch(lines_of(given)))
    assert (batch.counts.completed, batch.counts.failed) == (7, 1)
    assert ids(await world.lines(batch.output_file_id)) == [f"line-{n}" for n in range(8) if n != 5]
    (error,) = await world.lines(batch.error_file_id)
    assert error["custom_id"] == "line-5" and error["error"] is None
    assert error["response"]["status_code"] == status
    body = error["response"]["body"]["error"]
    assert body["code"] == code and set(body) == {"message", "type", "param", "code"}
    if trap == WRONG:
        assert body["param"] == "input[1]" and body["message"] == "input[1] is wrong"


async def test_a_text_kills_the_engine_three_times_alone_before_it_is_given_up(world: World) -> None:
    await world.ended(await world.batch(lines_of(["good", POISON])))
    assert world.lane.slices.count([POISON]) == 2  # counted on from the slice of both, that was sent twice
    assert len(world.lane.slices) == 5


async def test_one_of_many_texts_is_found_before_the_engine_has_died_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings.EmbeddingLines, "sizes", EMBEDDINGS)
    given = [f"{n} {POISON if n == 77 else 'fine'}" for n in range(200)]
    batch = await world.ended(await world.batch(lines_of(given)))
    assert (batch.counts.completed, batch.counts.failed) == (199, 1)
    deaths = [part for part in world.lane.slices if any(POISON in text for text in part)]
    assert len(deaths) <= 5, [len(part) for part in deaths]


async def test_dimensions_that_the_model_does_not_have_fail_their_line(tmp_path: Path) -> None:
    world = World(tmp_path, embedding_mrl=False)
    data = lines_of(["a"]) + line("cut", input="b", dimensions=2)
    batch = await world.ended(await world.batch(data))
    (error,) = await world.lines(batch.error_file_id)
    assert error["response"]["body"]["error"]["param"] == "dimensions"
    assert batch.counts.completed == 1


async def test_a_batch_all_of_whose_lines_fail_completes_without_an_output_file(world: World) -> None:
    batch = await world.ended(await world.batch(lines_of([WRONG, WRONG])))
    assert batch.status is BatchStatus.COMPLETED
    assert batch.output_file_id is None and len(await world.lines(batch.error_file_id)) == 2


# -- generations -----------------------------------------------------------------------------------


async def test_chats_are_answered_as_the_endpoint_does_and_fail_alone(world: World) -> None:
    said = [f"hi {n}" for n in range(8)]
    said[2], said[6] = POISON, WRONG
    data = b"".join(chat_line(f"line-{n}", text) for n, text in enumerate(said))
    batch = await world.ended(await world.batch(data, CHATS))
    output, errors = await world.lines(batch.output_file_id), await world.lines(batch.error_file_id)
    assert ids(output) == ["line-0", "line-1", "line-3", "line-4", "line-5", "line-7"]
    body = output[3]["response"]["body"]
    assert body["object"] == "chat.completion" and body["id"] == output[3]["response"]["request_id"]
    assert body["choices"][0]["message"]["content"] == "echo hi 4"
    assert [error["response"]["status_code"] for error in errors] == [500, 400]
    assert (batch.tokens.input, batch.tokens.cached, batch.tokens.output, batch.tokens.reasoning) == (18, 6, 30, 12)
    sent = [request.messages[-1]["content"] for request in world.lane.generated if request.messages]
    assert sent.count(POISON) == 3 and sent.count(WRONG) == 1


async def test_a_fault_of_the_servers_own_costs_its_line_and_tells_nothing(world: World) -> None:
    data = chat_line("bad", VAGUE) + chat_line("good", "hi")
    batch = await world.ended(await world.batch(data, CHATS))
    assert (batch.counts.completed, batch.counts.failed) == (1, 1)
    (error,) = await world.lines(batch.error_file_id)
    assert error["response"]["status_code"] == 500
    assert error["response"]["body"]["error"]["code"] == "internal_error"
    assert "fault" not in json.dumps(error)


async def test_completions_are_answered_too(world: World) -> None:
    data = line("one", "/v1/completions", model=CHAT, prompt="once", echo=True)
    batch = await world.ended(await world.batch(data, "/v1/completions"))
    (answer,) = await world.lines(batch.output_file_id)
    assert answer["response"]["body"]["choices"][0]["text"] == "onceecho once"
    assert answer["response"]["body"]["object"] == "text_completion"


# -- crashes ---------------------------------------------------------------------------------------


async def crash_after(world: World, batch: BatchRecord, windows: int) -> FakeLane:
    """Run it in a process that ends without a word once so many windows are done."""
    dying = FakeLane()
    task = asyncio.ensure_future(world.runner(dying).run(batch))

    async def has_done() -> bool:
        return sum(entry.name.endswith(".json") for entry in await world.files.list_parts(batch.id)) >= windows

    async def hang_in_the_next() -> None:
        if len(dying.slices) > windows:  # each window is one slice here
            await asyncio.Event().wait()

    dying.before = hang_in_the_next
    await until(has_done)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return dying


async def test_after_a_crash_what_is_done_stays_and_ids_do_not_change(world: World) -> None:
    data = lines_of(texts())
    batch = await world.batch(data)
    before = await crash_after(world, batch, 2)
    assert (await world.batches.get(batch.id)).status is BatchStatus.IN_PROGRESS
    after = await world.ended(batch)
    assert after.counts.completed == N_LINES
    output = await world.lines(after.output_file_id)
    assert ids(output) == [f"line-{n}" for n in range(N_LINES)]
    again = [text for part in world.lane.slices for text in part]
    assert len(again) <= N_LINES - 2 * SMALL.lines
    assert len(again) + sum(map(len, before.slices)) >= N_LINES
    assert after.tokens.input == sum(len(text.split()) for text in texts())


async def test_a_crash_while_it_is_put_together_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await world.batch(lines_of(texts(10)))
    runner = world.runner()

    async def crash(*_: object) -> None:
        raise RuntimeError("power cut")

    update = world.batches.update
    monkeypatch.setattr(world.batches, "update", crash)
    with pytest.raises(RuntimeError):
        await runner.run(batch)
    monkeypatch.setattr(world.batches, "update", update)
    finalizing = await update(batch.id, lambda current: advanced(current, BatchStatus.FINALIZING, time.time()))
    sent = len(world.lane.slices)
    after = await world.ended(finalizing)
    assert after.status is BatchStatus.COMPLETED and len(world.lane.slices) == sent
    assert len(await world.lines(after.output_file_id)) == 10


async def test_an_input_file_that_is_gone_fails_the_batch(world: World) -> None:
    batch = await world.batch(lines_of(["a"]))
    await world.files.delete(batch.input_file_id)
    after = await world.ended(batch)
    assert after.status is BatchStatus.FAILED
    assert [error.code for error in after.errors] == ["file_not_found"]


async def test_a_full_storage_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refused = world.files.write_part, [StorageFull(), StorageFull()]

    async def full(batch_id: str, name: str, data: bytes) -> None:
        if refused:
            raise refused.pop()
        await write(batch_id, name, data)

    monkeypatch.setattr(world.files, "write_part", full)
    after = await world.ended(await world.batch(lines_of(["a", "b"])))
    assert after.counts.completed == 2 and not refused
    assert len(world.lane.slices) == 1


# -- other ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hears", ["flag", "record"])
async def test_a_cancelled_batch_ends_with_what_it_has(
    world: World, hears: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LOOK_AT_RECORD_S", 0.02)
    world.lane.busy_s = 10.0
    batch = await world.batch(lines_of(["x " * 1000 for _ in range(20)]))
    reached = asyncio.Event()

    async def hang_in_the_third() -> None:
        if len(world.lane.slices) >= 3:
            reached.set()
            await asyncio.Event().wait()

    world.lane.before = hang_in_the_third
    task = asyncio.ensure_future(world.runner().run(batch))
    await reached.wait()
    if hears == "record":
        await world.batches.update(batch.id, lambda now: advanced(now, BatchStatus.CANCELLING, time.time()))
    else:
        await world.live.ask_to_cancel(batch.id)
        await world.batches.update(batch.id, lambda now: advanced(now, BatchStatus.CANCELLING, time.time()))
    await asyncio.wait_for(task, 5)
    after = await world.batches.get(batch.id)
    assert after.status is BatchStatus.CANCELLED and after.cancelled_at
    output, errors = await world.lines(after.output_file_id), await world.lines(after.error_file_id)
    assert 1 <= len(output) <= 2 and len(output) + len(errors) == 20
    assert {error["error"]["code"] for error in errors} == {"batch_cancelled"}
    assert all(error["response"] is None for error in errors)
    assert (after.counts.completed, after.counts.failed) == (len(output), len(errors))
    assert world.lane.in_flight == 0


async def test_a_process_that_takes_over_a_batch_that_is_being_cancelled_runs_nothing(world: World) -> None:
    batch = await world.batch(lines_of(texts(20)))
    await crash_after(world, batch, 1)
    cancelling = await world.batches.update(batch.id, lambda now: advanced(now, BatchStatus.CANCELLING, time.time()))
    after = await world.ended(cancelling)
    assert after.status is BatchStatus.CANCELLED and world.lane.slices == []
    assert len(await world.lines(after.output_file_id)) + len(await world.lines(after.error_file_id)) == 20


async def test_a_batch_whose_time_is_over_ends_as_expired_with_what_it_has(world: World) -> None:
    batch = await world.batch(lines_of(texts(20)), expires_at=int(time.time()) - 1)
    after = await world.ended(batch)
    assert after.status is BatchStatus.EXPIRED and after.expired_at
    errors = await world.lines(after.error_file_id)
    assert {error["error"]["code"] for error in errors} == {"batch_expired"}
    assert len(errors) + len(await world.lines(after.output_file_id)) == 20


async def test_progress_is_told_while_it_runs(world: World) -> None:
    world.lane.busy_s = 10.0
    batch = await world.batch(lines_of(["x " * 1000 for _ in range(8)]))
    release = asyncio.Event()

    async def hold_the_fifth() -> None:
        if len(world.lane.slices) >= 5:
            await release.wait()

    world.lane.before = hold_the_fifth
    task = asyncio.ensure_future(world.runner().run(batch))

    async def four_are_done() -> bool:
        return (await world.live.with_progress([batch]))[0].counts.completed >= 4

    await until(four_are_done)
    (now,) = await world.live.with_progress([batch])
    assert now.counts.total == 8 and now.tokens.input == 4000
    release.set()
    await task
    assert json.loads(json.dumps((await world.batches.get(batch.id)).counts.completed)) == 8


async def test_of_one_key_two_batches_run_at_a_time_and_others_wait(world: World) -> None:
    batches = [await world.batch(lines_of([f"batch {n}"])) for n in range(4)]
    release = asyncio.Event()
    world.lane.before = release.wait
    runner = world.runner()
    tasks = [asyncio.ensure_future(runner.run(batch)) for batch in batches]

    async def two_run() -> bool:
        return len(world.lane.slices) == 2

    await until(two_run)
    await asyncio.sleep(0.05)
    assert len(world.lane.slices) == 2
    release.set()
    await asyncio.gather(*tasks)
    assert len(world.lane.slices) == 4
