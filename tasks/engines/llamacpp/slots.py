"""Which tokens go into the next batch, and which slot takes a request. Pure: no llama.cpp, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class Slot:
    """One sequence in the KV cache. Only the decode thread touches it.

    `tokens[:n_kept]` are in the cache, at positions 0 up. What follows is to be decoded: the rest of the prompt, or the
    token that was sampled last.
    """

    index: int  #: llama.cpp's sequence id
    tokens: list[int] = field(default_factory=list)
    n_kept: int = 0
    busy: bool = False
    is_prefilling: bool = False
    last_used: int = 0  #: number of the request that had it last; 0: none

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_kept if self.busy else 0

    def begin(self, prompt: Sequence[int], n_kept: int, number: int) -> None:
        """Take a request whose first `n_kept` prompt tokens are in the cache."""
        self.tokens = list(prompt)
        self.n_kept = n_kept
        self.busy = True
        self.is_prefilling = True
        self.last_used = number

    def end(self) -> None:
        """Be free. What is in the cache stays there for a request that begins like this one."""
        del self.tokens[self.n_kept :]
        self.busy = self.is_prefilling = False

    def forget(self) -> None:
        """The cache of this sequence is empty now."""
        self.n_kept = 0
        if not self.busy:
            self.tokens = []


class Part(NamedTuple):
    """A run of one slot's pending tokens."""

    slot: Slot
    start: int  #: position of the first token
    n_tokens: int
    wants_logits: bool  #: of the last token, to sample the next one

    @property
    def tokens(self) -> list[int]:
        return self.slot.tokens[self.start : self.start + self.n_tokens]


class StepPlan(NamedTuple):
    """One batch; at most one part for each slot. Empty: nothing to do."""

    parts: list[Part]

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens for part in self.parts)


def plan_step(slots: Sequence[Slot], n_batch: int, n_ubatch: int | None = None) -> StepPlan:
    """The next batch of at most `n_batch` tokens, which llama.cpp decodes in passes of `n_ubatch` (None: in one).

    Slots that generate come first, one token each, so that a long prompt of another request never holds up a running
    answer by more than one chunk. Prompts share the rest, the one that came first before the others.
    """
    working = [slot for slot in slots if slot.n_pending]
    parts: list[Part] = []
    room = n_batch
    for slot in sorted(working, key=lambda slot: (slot.is_prefilling, slot.last_used)):
        count = min(slot.n_pending, room)
        if not count:
            break
        if slot.is_prefilling:
            count = _without_lone_tokens(count, slot.n_pending, n_ubatch or n_batch)
        parts.append(Part(slot, slot.n_kept, count, wants_logits=count == slot.n_pending))
        room -= count
    return StepPlan(parts)


def _without_lone_tokens(count: int, n_pending: int, n_ubatch: int) -> int:
    """`count` or a little less of `n_pending` prompt tokens, so that no token is decoded all alone, now or later.

    llama.cpp's arithmetic for one row rounds differently from that for several, which all agree; so the answer does not
    depend on where a prompt was cut.
    """
    for fewer in range(count, max(1, count - 3), -1):
        if fewer % n_ubatch != 1 and n_pending - fewer != 1:
            return fewer
    return count


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    end = min(len(a), len(b))
    if a[:end] == b[:end]:  # compares in C: the usual case of a conversation that goes on
        return end
    return next(index for index in range(end) if a[index] != b[index])


def choose_slot(slots: Sequence[Slot], prompt: Sequence[int]) -> tuple[Slot, int] | None:
    """The free slot whose cache begins most like `prompt`, and how many of its tokens can stay.

    Among equals the slot that was unused longest. None: all are busy.
    """
    free = [slot for slot in slots if not slot.busy]
    if not free:
        return None
    shared = {slot.index: common_prefix(slot.tokens, prompt) for slot in free}
    best = min(free, key=lambda slot: (-shared[slot.index], slot.last_used, slot.index))
    return best, min(shared[best.index], _n_spared(prompt))


def n_reusable(slot: Slot, prompt: Sequence[int]) -> int:
    """How many tokens of the slot's cache can stay for `prompt`."""
    return min(common_prefix(slot.tokens, prompt), _n_spared(prompt))


def _n_spared(prompt: Sequence[int]) -> int:
    """Never all of the prompt: its last token must be decoded, for logits to sample from, and the one before it, too,
    for one alone would be rounded differently (`_without_lone_tokens`)."""
    return max(0, len(prompt) - 2)
