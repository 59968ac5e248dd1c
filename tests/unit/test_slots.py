"""Which tokens go into the next batch, and which slot takes a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engines.llamacpp.slots import Slot, choose_slot, common_prefix, plan_step


def generating(index: int, n_kept: int = 5) -> Slot:
    return Slot(index, tokens=list(range(n_kept + 1)), n_kept=n_kept, busy=True, last_used=index + 1)


def prefilling(index: int, n_pending: int, n_kept: int = 0) -> Slot:
    tokens = list(range(n_kept + n_pending))
    return Slot(index, tokens=tokens, n_kept=n_kept, busy=True, is_prefilling=True, last_used=index + 1)


@st.composite
def slots_of_any_kind(draw: st.DrawFn) -> list[Slot]:
    slots = []
    for index in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(("free", "generating", "prefilling")))
        if kind == "prefilling":
            slots.append(prefilling(index, draw(st.integers(1, 700)), draw(st.integers(0, 50))))
        else:
            slots.append(Slot(index) if kind == "free" else generating(index))
    return slots


@given(slots=slots_of_any_kind(), n_batch=st.integers(8, 256))
def test_a_plan_fits_the_batch_and_moves_every_running_answer(slots: list[Slot], n_batch: int) -> None:
    plan = plan_step(slots, n_batch)
    assert plan.n_tokens <= n_batch
    planned = [part.slot.index for part in plan.parts]
    assert len(planned) == len(set(planned))
    assert {slot.index for slot in slots if slot.busy and not slot.is_prefilling} <= set(planned)
    for part in plan.parts:
        assert part.start == part.slot.n_kept
        assert 1 <= part.n_tokens <= part.slot.n_pending
        assert part.wants_logits == (part.n_tokens == part.slot.n_pending)
    pending = sum(slot.n_pending for slot in slots)
    left_for_the_next_chunk = 2 * len(plan.parts)  # at most, so that no token is decoded all alone
    assert min(n_batch, pending) - left_for_the_next_chunk <= plan.n_tokens <= min(n_batch, pending)


def test_running_answers_come_before_prompts() -> None:
    plan = plan_step([prefilling(0, 100), generating(1)], n_batch=32)
    assert [(part.slot.index, part.n_tokens) for part in plan.parts] == [(1, 1), (0, 31)]


def test_the_prompt_that_came_first_is_filled_first() -> None:
    late, early = prefilling(0, 100), prefilling(1, 20)
    late.last_used, early.last_used = 9, 4
    plan = plan_step([late, early], n_batch=32)
    assert [(part.slot.index, part.n_tokens) for part in plan.parts] == [(1, 20), (0, 12)]


def test_logits_are_wanted_of_a_prompts_last_chunk_only() -> None:
    slot = prefilling(0, 40)
    assert [part.wants_logits for part in plan_step([slot], 32).parts] == [False]
    slot.n_kept = 32
    assert [part.wants_logits for part in plan_step([slot], 32).parts] == [True]


def test_nothing_to_do() -> None:
    assert plan_step([Slot(0), Slot(1, tokens=[1, 2, 3], n_kept=3)], 32).parts == []


@given(a=st.lists(st.integers(0, 2)), b=st.lists(st.integers(0, 2)))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def test_the_slot_that_remembers_most_is_chosen() -> None:
    slots = [Slot(0, tokens=[1, 2], n_kept=2), Slot(1, tokens=[1, 2, 3, 9], n_kept=4), Slot(2)]
    assert choose_slot(slots, [1, 2, 3, 4, 5]) == (slots[1], 3)


@pytest.mark.parametrize(("prompt", "kept"), [([1, 2, 3], 1), ([1, 2], 0), ([1], 0), ([1, 2, 3, 4], 2)])
def test_an_identical_prompt_still_decodes_its_last_token_and_not_all_alone(prompt: list[int], kept: int) -> None:
    slot = Slot(0, tokens=[1, 2, 3], n_kept=3)
    assert choose_slot([slot], prompt) == (slot, kept)


@pytest.mark.parametrize("length", range(2, 40))
@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(16, 16), (16, 8), (12, 5)])
def test_no_token_of_a_prompt_is_decoded_all_alone(length: int, n_batch: int, n_ubatch: int) -> None:
    slot = Slot(0)
    slot.begin(list(range(length)), n_kept=0, number=1)
    passes = []
    while slot.n_pending:
        (part,) = plan_step([slot], n_batch, n_ubatch).parts
        slot.n_kept += part.n_tokens
        passes += [min(n_ubatch, part.n_tokens - at) for at in range(0, part.n_tokens, n_ubatch)]
    assert 1 not in passes
    assert sum(passes) == length


def test_among_equals_the_slot_unused_longest_is_chosen() -> None:
    slots = [Slot(0, last_used=3), Slot(1, last_used=1), Slot(2, last_used=2)]
    assert choose_slot(slots, [7]) == (slots[1], 0)


def test_a_busy_slot_is_never_chosen() -> None:
    assert choose_slot([generating(0)], [0, 1, 2]) is None


def test_an_ended_request_leaves_only_what_is_in_the_cache() -> None:
    slot = Slot(0)
    slot.begin([1, 2, 3, 4], n_kept=0, number=1)
    slot.n_kept = 2
    slot.end()
    assert (slot.tokens, slot.busy, slot.n_pending) == ([1, 2], False, 0)


def test_a_forgotten_slot_is_empty_when_it_ends() -> None:
    slot = generating(0)
    slot.forget()
    slot.end()
    assert slot.tokens == []
