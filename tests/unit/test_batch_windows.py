"""Where windows end, and what is kept of them."""

from pathlib import Path

import pytest

from api.batches.records import BatchRecord, TokenCounts
from api.batches.runner.parts import Parts
from api.batches.runner.windows import EMBEDDINGS, Answered, Window, WindowSizes, read_window
from api.protocol.batch_lines import body_parser
from tests.unit.batch_runs import World
from tests.unit.batch_support import line

SMALL = WindowSizes(lines=4, strings=100, bytes=10_000, open=2)


async def read_all(world: World, batch: BatchRecord, sizes: WindowSizes, max_inputs: int = 128) -> list[Window]:
    parse = body_parser(batch.endpoint, max_inputs=max_inputs, max_n=8)
    windows: list[Window] = []
    offset, number = 0, 1
    while (
        window := await read_window(world.files, batch, parse, sizes, 1 << 20, len(windows), offset, number)
    ) is not None:
        windows.append(window)
        offset, number = window.end, window.next_number
    return windows


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (SMALL, [4, 4, 3]),
        (SMALL._replace(lines=100, strings=40), [3, 3, 3, 2]),  # 12 strings a line
        (SMALL._replace(lines=100, bytes=400), [3, 3, 3, 2]),
        (SMALL._replace(bytes=1), [1] * 11),
        (SMALL._replace(strings=1), [1] * 11),
        (EMBEDDINGS, [11]),
    ],
)
async def test_windows_are_cut_at_the_first_bound_and_lose_no_line(
    tmp_path: Path, sizes: WindowSizes, expected: list[int]
) -> None:
    world = World(tmp_path)
    batch = await world.batch(b"\n".join(line(f"{n:02}") for n in range(11)))  # with blank lines between
    windows = await read_all(world, batch, sizes)
    assert [len(window.lines) for window in windows] == expected
    ids = [item.custom_id for window in windows for item in window.lines]
    assert ids == [f"{n:02}" for n in range(11)]
    assert [item.number for window in windows for item in window.lines] == list(range(1, 22, 2))


async def test_a_setting_that_changes_moves_no_window(tmp_path: Path) -> None:
    world = World(tmp_path)
    batch = await world.batch(b"".join(line(str(n), input=["a"] * (n % 7 + 1)) for n in range(60)))
    sizes = SMALL._replace(lines=1000)
    before, after = await read_all(world, batch, sizes), await read_all(world, batch, sizes, max_inputs=3)
    assert [window.end for window in before] == [window.end for window in after]
    errors = [item.error for window in after for item in window.lines if item.error]
    assert {error.param for error in errors} == {"input"}
    assert {error.status for error in errors} == {400}


def answered(window: Window) -> Window:
    for place, item in enumerate(window.lines):
        text = f"{item.custom_id} {id(window)}\n".encode()
        window.answer(place, Answered(place == 1, lambda text=text: text, TokenCounts(input=2)))  # type: ignore[misc]
    return window


async def test_a_window_done_twice_is_the_first_one_of_both(tmp_path: Path) -> None:
    world = World(tmp_path)
    batch = await world.batch(b"".join(line(str(n)) for n in range(3)))
    (one,), (two,) = await read_all(world, batch, EMBEDDINGS), await read_all(world, batch, EMBEDDINGS)
    mine, theirs = Parts(world.files, batch), Parts(world.files, batch)
    record = await mine.commit(answered(one))
    assert await theirs.commit(answered(two)) == record
    assert await theirs.load() == {0: record}
    assert (record.completed, record.failed, record.tokens.input) == (2, 1, 6)
    results = await theirs.assemble({0: record})
    assert results.output is not None and results.error is not None
    output = b"".join([block async for block in world.files.content(results.output.id)])
    assert output == f"0 {id(one)}\n2 {id(one)}\n".encode()


async def test_what_a_crash_left_of_a_window_is_not_in_the_output(tmp_path: Path) -> None:
    world = World(tmp_path)
    batch = await world.batch(line("0"))
    await world.files.write_part(batch.id, "000000.abc.000.out", b"half done\n")
    assert await Parts(world.files, batch).load() == {}


async def test_the_first_answer_of_a_line_holds(tmp_path: Path) -> None:
    world = World(tmp_path)
    (window,) = await read_all(world, await world.batch(line("0")), EMBEDDINGS)
    window.answer(0, Answered(True, lambda: b"first"))
    window.answer(0, Answered(False, lambda: b"second"))
    assert (window.completed, window.failed) == (0, 1)
