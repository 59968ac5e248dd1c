"""One choice of a request: its tokens from the first to the last, and what restricts them."""

from typing import Any

import numpy as np

from tasks.contracts import FinishReason
from tasks.engines.base import DecodeFailed, Float32Array, FrameSink
from tasks.engines.llamacpp.answer_reader import AnswerReader
from tasks.engines.llamacpp.constraint import Constraint, TokenIds
from tasks.engines.llamacpp.logits import Logits
from tasks.engines.llamacpp.logprobs import Distribution
from tasks.engines.llamacpp.model import ChatModel
from tasks.engines.llamacpp.prompt import Prompt
from tasks.engines.llamacpp.sampling import Sampler
from tasks.engines.llamacpp.text import AnswerText


class Choice:
    """Only the decode thread uses it; `free` ends its life."""

    def __init__(self, number: int, prompt: Prompt, model: ChatModel, logits: Logits, sink: FrameSink) -> None:
        self.number = number
        self.n_tokens = 0  #: every sampled token counts, one that ends the answer too, as llama-server counts them
        self.n_reasoning_tokens = 0
        self._prompt = prompt
        self._vocab = model.vocab
        self._logits = logits
        index = number // prompt.n
        self._max_tokens = prompt.max_tokens[index]
        self._min_tokens = prompt.sampling.min_tokens
        self._sampler = Sampler(
            prompt.sampling_of(number), model.vocab, model.n_ctx, prompt.prompts[index], prompt.biases
        )
        self._text = AnswerText(prompt.stop)
        self._with_logprobs = prompt.logprobs is not None
        self._distribution: Distribution | None = None  # that the last token was sampled from
        parser = prompt.plan.new_parser() if prompt.plan else None
        self._parser = parser
        self._reader = AnswerReader(number, parser, self._with_logprobs, sink)
        self._must_hold = prompt.plan is not None and prompt.plan.must_hold
        self._constraint: Constraint | None = None
        if prompt.grammar is not None:
            self._constraint = Constraint(model.grammar_tokens, prompt.grammar, model.vocab)
            if not (parser and parser.is_free):
                self._constraint.begin()

    def sample(self, context: Any, row: int) -> int | None:
        """The next token, from the logits of the batch's token number `row`. None: only the end is possible.

        Raises DecodeFailed.
        """
        is_constrained = self._constraint is not None and self._constraint.active
        if not (is_constrained or self._with_logprobs or self._may_not_end()):
            return self._sampler.sample(context, row)
        logits = self._logits.row(row)
        if self._prompt.logprobs is not None:
            self._distribution = Distribution(logits, self._prompt.logprobs)
        possible = self._possible(logits)
        if possible is None:
            return self._sampler.sample(context, row)
        return self._sampler.sample_among(possible, logits) if len(possible) else None

    def add(self, token: int) -> FinishReason | None:
        """Take the token that was sampled. A reason: the answer ends with it. Raises DecodeFailed."""
        is_first = not self.n_tokens
        self.n_tokens += 1
        self._reader.count_token()
        if self._parser and self._parser.in_reasoning:
            self.n_reasoning_tokens += 1
        if self._vocab.is_eog(token):
            return FinishReason.STOP
        piece = self._piece(token, is_first)
        constraint = self._constraint
        if constraint and constraint.active and not (is_first and token == self._prompt.opening):
            constraint.take(token)
        step = self._text.feed(piece)
        if self._distribution:
            self._reader.add_logprob(self._distribution.of(token, piece, self._spelling), self._text.decoded)
        if constraint:
            self._read_marks(step.text, constraint)
        else:
            self._reader.read(step.text)
        if step.stopped:
            self._text = AnswerText()  # what follows the stop text is not the answer's
            return FinishReason.STOP
        if constraint and constraint.active and constraint.must_end:
            return FinishReason.STOP
        if self._parser and self._parser.is_done:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.n_tokens >= self._max_tokens else None

    def finish(self, reason: FinishReason) -> FinishReason:
        """All of its text leaves. Gives the reason to tell."""
        step = self._text.finish()
        self._reader.read(step.text)
        self._reader.finish()
        if step.stopped:
            reason = FinishReason.STOP
        has_calls = self._parser is not None and self._parser.has_calls
        return FinishReason.TOOL_CALLS if has_calls and reason is FinishReason.STOP else reason

    def free(self) -> None:
        """Any number of times."""
        self._sampler.free()

    def _possible(self, logits: Float32Array) -> TokenIds | None:
        """The tokens to choose among; None: all."""
        constraint = self._constraint
        if not (constraint and constraint.active):
            return self._vocab.not_eog if self._may_not_end() else None
        allowed = constraint.allowed()
        may_end = constraint.may_end
        if not self.n_tokens and self._prompt.opening is not None:
            allowed[self._prompt.opening] = 1
        if may_end and not self._may_not_end() and not self._prompt.sampling.ignore_eos:
            allowed[self._vocab.eog] = 1
        possible: TokenIds = np.flatnonzero(allowed)
        if not len(possible) and not may_end:
            raise DecodeFailed("No token of this model can go on the answer as its grammar demands.")
        return possible

    def _may_not_end(self) -> bool:
        """Too few tokens, or nothing but reasoning where a grammar is to follow."""
        reasons = self._must_hold and self._parser is not None and self._parser.in_reasoning
        return reasons or self.n_tokens < self._min_tokens

    def _read_marks(self, text: str, constraint: Constraint) -> None:
        """Let the parser read, and have the grammar hold exactly where the parser says that it does."""
        parser = self._parser
        if parser is None:
            self._reader.read(text)
            return
        parts = []
        for position, character in enumerate(text):
            if not parser.is_free:
                parts += parser.feed(text[position:])
                break
            parts += parser.feed(character)
            if not parser.is_free:
                constraint.begin(text[position + 1 :].encode() + self._text.held)
        self._reader.tell(parts)
        if parser.is_free:
            constraint.end()

    def _piece(self, token: int, is_first: bool) -> bytes:
        if token in self._prompt.preserved:
            return self._prompt.preserved[token]
        if is_first and self._prompt.is_chat and not (self._constraint and self._constraint.active):
            return self._vocab.first_piece(token)
        return self._vocab.piece(token)

    def _spelling(self, token: int) -> bytes:
        """Of an alternative: control tokens are to be seen there."""
        return self._vocab.piece(token) or self._vocab.text(token).encode()
