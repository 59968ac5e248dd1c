"""A request, ready for the decode loop."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llguidance import LLMatcher
from msgspec.structs import replace

from tasks.answer_parts import AnswerPlan
from tasks.contracts import Sampling
from tasks.engines.llamacpp.sampling import Bias


class Prompt(NamedTuple):
    """One or several prompts, each with `n` choices. Choice `number` answers prompt `number // n`."""

    id: str
    prompts: Sequence[Sequence[int]]
    max_tokens: Sequence[int]  #: of each prompt's choices: at least 1; what the window leaves is counted in
    stop: Sequence[str]
    sampling: Sampling
    is_chat: bool  #: the answer is a text of its own, not the prompt's continuation
    n: int = 1
    logprobs: int | None = None
    biases: Sequence[Bias] = ()  #: see `token_biases`
    plan: AnswerPlan | None = None  #: None: all that comes is text
    grammar: LLMatcher | None = None  #: the plan's, compiled
    preserved: Mapping[int, bytes] = {}  #: the plan's preserved control tokens, with their spelling
    opening: int | None = None  #: the plan's opening mark, where it is one token

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.n

    def sampling_of(self, number: int) -> Sampling:
        """A seed counts up with the choices of a prompt, so that they differ, and can be had again one by one."""
        index = number % self.n
        if self.sampling.seed is None or not index:
            return self.sampling
        return replace(self.sampling, seed=self.sampling.seed + index)
