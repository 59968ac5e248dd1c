"""One choice's text on its way to the sink: answer, reasoning and calls of tools, with log probabilities."""

from collections.abc import Iterable, Iterator, Sequence

from tasks.answer_parts import AnswerParser, AnswerPart, CallPart, TextPart
from tasks.contracts import TokenLogprob
from tasks.engines.base import FrameSink
from tasks.engines.llamacpp.logprobs import TokenAligner, Visible


class AnswerReader:
    """Only the decode thread uses it."""

    def __init__(self, choice: int, parser: AnswerParser | None, with_logprobs: bool, sink: FrameSink) -> None:
        """`parser` None: all is answer."""
        self.parser = parser
        self._choice = choice
        self._sink = sink
        self._aligner = TokenAligner() if with_logprobs else None
        self._unsent_tokens = 0  # sampled since the last delta

    def count_token(self) -> None:
        """A token was sampled; the next delta covers it."""
        self._unsent_tokens += 1

    def add_logprob(self, token: TokenLogprob, characters: str) -> None:
        """`characters`: what the token completes. Comes before `read` of them."""
        if self._aligner:
            self._aligner.add(token, characters)

    def read(self, text: str) -> None:
        """The next text that is not part of a stop text."""
        if not text:
            return
        if self.parser is None:
            self._answer(text)
        else:
            self.tell(self.parser.feed(text))

    def finish(self) -> None:
        """No more text comes."""
        if self.parser:
            self.tell(self.parser.finish())
        if self._aligner:
            self._send_visible(self._aligner.finish())

    def tell(self, parts: Sequence[AnswerPart]) -> None:
        for part in parts if len(parts) < 2 else _joined(parts):
            if isinstance(part, CallPart):
                if self._aligner:
                    self._send_visible(self._aligner.drop_all_but_last())
                self._sink.tool_call(self._choice, part.call, part.call_id, part.name, part.arguments)
                self._unsent_tokens = 0
            elif not part.is_reasoning:
                self._answer(part.text)
            elif part.text:
                if self._aligner:
                    self._send_visible(self._aligner.drop(part.text))
                self._sink.delta(part.text, self._unsent_tokens, self._choice, is_reasoning=True)
                self._unsent_tokens = 0

    def _answer(self, text: str) -> None:
        if self._aligner:
            self._send_visible(self._aligner.take(text))
        elif text:
            self._sink.delta(text, self._unsent_tokens, self._choice)
            self._unsent_tokens = 0

    def _send_visible(self, visible: Visible) -> None:
        if visible.text:
            self._sink.delta(visible.text, self._unsent_tokens, self._choice, logprobs=visible.logprobs)
            self._unsent_tokens = 0


def _joined(parts: Iterable[AnswerPart]) -> Iterator[AnswerPart]:
    """Neighbouring texts of one kind as one."""
    waiting: TextPart | None = None
    for part in parts:
        if isinstance(part, TextPart):
            if waiting and waiting.is_reasoning == part.is_reasoning:
                waiting = TextPart(waiting.text + part.text, part.is_reasoning)
                continue
            if waiting:
                yield waiting
            waiting = part
        else:
            if waiting:
                yield waiting
            waiting = None
            yield part
    if waiting:
        yield waiting
