"""Lines of the chat and completions endpoints: a request each."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec

from api.batches.records import BatchRecord, TokenCounts
from api.batches.runner.answer_lines import answer_line, error_line, request_id
from api.batches.runner.lane import BatchLane, Generated, Slots
from api.batches.runner.windows import GENERATIONS, Answered, Window
from api.errors import ErrorAnswer, describe
from api.job import RESTARTABLE
from api.job_types import RequestFailed
from api.protocol.answers import AnswerFormat, Generation
from api.protocol.batch_lines import CHAT, COMPLETIONS
from api.protocol.chat import ChatAnswer
from api.protocol.completions import CompletionAnswer
from tasks.contracts import Lane

log = logging.getLogger(__name__)

FORMATS: dict[str, Callable[[Generation], AnswerFormat]] = {CHAT: ChatAnswer, COMPLETIONS: CompletionAnswer}
MAX_SENDINGS = 3  #: of a request during which the engine died each time
DEATH_PAUSE_S = 1.0
MAX_IN_FLIGHT = 64


class GenerationLines:
    """Executes the windows of one batch."""

    sizes = GENERATIONS

    def __init__(self, batch: BatchRecord, lane: BatchLane) -> None:
        self._batch = batch
        self._lane = lane
        self._make_format = FORMATS[batch.endpoint]
        self._sending = asyncio.Lock()  #: one window after the other
        self._slots = Slots(self._in_flight)

    def _in_flight(self) -> int:
        """One that waits beside those that run, so that no slot has to wait."""
        slots = sum(worker.slots for worker in self._lane.ready(self._batch.model))
        return min(MAX_IN_FLIGHT, max(1, slots) + 1)

    async def execute(self, window: Window) -> None:
        """Every line of it is answered on return."""
        async with asyncio.TaskGroup() as group, self._sending:
            for place, line in enumerate(window.lines):
                if isinstance(line.parsed, Generation):
                    await self._slots.acquire()
                    group.create_task(self._line(window, place, line.parsed))
                elif line.error is not None:
                    self._fail(window, place, line.error)

    async def _line(self, window: Window, place: int, parsed: Generation) -> None:
        try:
            await self._generate(window, place, parsed)
        except Exception as exc:  # a fault of ours with one line must not stop the batch
            line = window.lines[place].number
            log.exception("line of a batch failed", extra={"batch_id": self._batch.id, "line": line})
            self._fail(window, place, describe(exc))
        finally:
            self._slots.release()

    async def _generate(self, window: Window, place: int, parsed: Generation) -> None:
        batch, line = self._batch, window.lines[place]
        answer_id = request_id(batch.id, batch.endpoint, line.number)
        request = msgspec.structs.replace(parsed.request, id=answer_id, created_ms=int(time.time() * 1000))
        for sending in range(1, MAX_SENDINGS + 1):
            try:
                generated = await self._lane.generate(request, batch)
                break
            except RequestFailed as exc:
                if exc.code not in RESTARTABLE or sending == MAX_SENDINGS:
                    self._fail(window, place, describe(exc))
                    return
            await asyncio.sleep(DEATH_PAUSE_S * sending)
        done = parsed._replace(request=msgspec.structs.replace(request, lane=Lane.BATCH))
        body = self._make_format(done).whole(*generated)
        encode = partial(answer_line, batch.id, line, answer_id, body)
        window.answer(place, Answered(False, encode, _tokens(generated)))

    def _fail(self, window: Window, place: int, error: ErrorAnswer) -> None:
        line = window.lines[place]
        request = request_id(self._batch.id, self._batch.endpoint, line.number)
        window.answer(place, Answered(True, partial(error_line, self._batch.id, line, request, error)))


def _tokens(generated: Generated) -> TokenCounts:
    usage = generated.answer.usage
    return TokenCounts(
        input=usage.prompt_tokens,
        cached=usage.cached_tokens,
        output=usage.completion_tokens,
        reasoning=usage.reasoning_tokens,
    )
