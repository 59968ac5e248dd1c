"""Lines of /v1/embeddings: the texts of a window sorted by length and packed into slices."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from api.batches.records import BatchRecord, TokenCounts
from api.batches.runner.answer_lines import answer_line, error_line, request_id
from api.batches.runner.lane import BatchLane, SliceAnswer, Slots
from api.batches.runner.packing import Pace, pack
from api.batches.runner.windows import EMBEDDINGS, Answered, Window, WindowLine
from api.errors import ErrorAnswer, describe
from api.job import RESTARTABLE
from api.job_types import RequestFailed
from api.protocol.embeddings import EmbeddingsBody, check_dimensions, encode_answer
from api.protocol.fields import InvalidRequest

log = logging.getLogger(__name__)

MAX_SENDINGS = 2  #: of a slice during which the engine died each time; then its texts are sent in smaller ones
MAX_SENDINGS_ALONE = 3  #: of a text, that of its last slice among them; then its line fails
PARTS = 8  #: smaller slices that are made of one, at least: each round of them may cost the engine's life once
DEATH_PAUSE_S = 1.0
MAX_IN_FLIGHT = 8


class Text(NamedTuple):
    """One text of a window."""

    place: int  #: of its line in the window
    position: int  #: in the line's input
    text: str


class OpenLine:
    """A line some of whose vectors are not there yet."""

    def __init__(self, n_texts: int) -> None:
        self.rows = [b""] * n_texts
        self.truncated: list[int] = []
        self.tokens = 0
        self.left = n_texts

    def take(self, position: int, row: bytes, tokens: int) -> None:
        self.rows[position] = row
        self.tokens += tokens
        self.left -= 1


class EmbeddingLines:
    """Executes the windows of one batch."""

    sizes = EMBEDDINGS

    def __init__(self, batch: BatchRecord, lane: BatchLane, pace: Pace, is_matryoshka: bool) -> None:
        """`pace` is that of the batch's model."""
        self._batch = batch
        self._lane = lane
        self._pace = pace
        self._is_matryoshka = is_matryoshka
        self._sending = asyncio.Lock()  #: one window after the other
        self._slots = Slots(self._in_flight)
        self._lines: dict[int, dict[int, OpenLine]] = {}  #: by window and place

    def _in_flight(self) -> int:
        """One slice that waits beside those that run, so that no worker has to wait."""
        return min(MAX_IN_FLIGHT, max(1, len(self._lane.ready(self._batch.model))) + 1)

    async def execute(self, window: Window) -> None:
        """Every line of it is answered on return."""
        self._lines[window.index] = {}
        try:
            async with asyncio.TaskGroup() as group, self._sending:
                self._learn()
                texts = self._texts(window)
                while texts:
                    await self._slots.acquire()
                    group.create_task(self._slice(window, pack(texts, self._pace)))
        finally:
            del self._lines[window.index]

    def _learn(self) -> None:
        info = self._lane.info(self._batch.model)
        if info is not None:
            self._pace.n_ctx, self._pace.width = info.n_ctx, info.width
        for worker in self._lane.ready(self._batch.model):
            self._pace.begin_with(worker.rates)

    def _texts(self, window: Window) -> deque[Text]:
        """Those of lines that can be run, the longest first."""
        texts: list[Text] = []
        for place, line in enumerate(window.lines):
            if isinstance(line.parsed, EmbeddingsBody):
                self._lines[window.index][place] = OpenLine(len(line.parsed.texts))
                texts += [Text(place, position, text) for position, text in enumerate(line.parsed.texts)]
            elif line.error is not None:
                self._fail(window, place, line.error)
        texts.sort(key=lambda item: len(item.text), reverse=True)
        return deque(texts)

    # -- one slice ---------------------------------------------------------------------------------

    async def _slice(self, window: Window, texts: list[Text]) -> None:
        try:
            await self._embed(window, texts, 0)
        finally:
            self._slots.release()

    async def _embed(self, window: Window, texts: list[Text], deaths: int) -> None:
        """`deaths`: how often the engine has died with just these texts."""
        texts = [item for item in texts if not window.is_answered(item.place)]  # another text has failed its line
        if not texts:
            return
        try:
            answer = await self._lane.embed(self._batch, [item.text for item in texts])
        except RequestFailed as exc:
            await self._blame(window, texts, deaths, exc)
            return
        self._pace.measured(sum(len(item.text) for item in texts), answer.prompt_tokens, answer.busy_s)
        self._take(window, texts, answer)

    async def _blame(self, window: Window, texts: list[Text], deaths: int, exc: RequestFailed) -> None:
        """Find the text that does it, and run the others."""
        if exc.code in RESTARTABLE:
            deaths += 1
            if deaths < (MAX_SENDINGS_ALONE if len(texts) == 1 else MAX_SENDINGS):
                await asyncio.sleep(DEATH_PAUSE_S * deaths)
                await self._embed(window, texts, deaths)
                return
        guilty = _position(exc.param, len(texts))
        if guilty is None and len(texts) > 1:
            extra = {"batch_id": self._batch.id, "texts": len(texts), "reason": exc.message}
            log.warning("slice of a batch is divided", extra=extra)
            for part in _divided(texts):
                await self._embed(window, part, 1 if exc.code in RESTARTABLE else 0)
            return
        item = texts[guilty or 0]
        name = f"input[{item.position}]"
        told = exc if exc.param is None else exc.reworded(exc.message.replace(exc.param, name), name)
        self._fail(window, item.place, describe(told))
        await self._embed(window, texts, 0)

    def _take(self, window: Window, texts: Sequence[Text], answer: SliceAnswer) -> None:
        lines = self._lines[window.index]
        cut = set(answer.truncated)
        tokens = answer.tokens or _shares([len(item.text) for item in texts], answer.prompt_tokens)
        for index, item in enumerate(texts):
            line = lines[item.place]
            line.take(item.position, answer.rows[index], tokens[index])
            if index in cut:
                line.truncated.append(item.position)
            if not line.left:
                self._finish(window, item.place, line)

    def _finish(self, window: Window, place: int, line: OpenLine) -> None:
        given = window.lines[place]
        body = given.parsed
        assert isinstance(body, EmbeddingsBody)
        try:
            check_dimensions(body.dimensions, len(line.rows[0]) // 4, self._is_matryoshka)
        except InvalidRequest as exc:
            self._fail(window, place, describe(exc))
            return
        if line.truncated:
            extra = {"batch_id": self._batch.id, "line": given.number, "inputs": sorted(line.truncated)}
            log.warning("inputs cut to the window", extra=extra)
        request = request_id(self._batch.id, self._batch.endpoint, given.number)
        encode = partial(_encode, self._batch.id, given, request, body, line.rows, line.tokens)
        window.answer(place, Answered(False, encode, TokenCounts(input=line.tokens)))

    def _fail(self, window: Window, place: int, error: ErrorAnswer) -> None:
        line = window.lines[place]
        request = request_id(self._batch.id, self._batch.endpoint, line.number)
        window.answer(place, Answered(True, partial(error_line, self._batch.id, line, request, error)))


def _encode(
    batch_id: str, line: WindowLine, request: str, body: EmbeddingsBody, rows: list[bytes], tokens: int
) -> bytes:
    answer = encode_answer(body.model, rows, tokens, body.encoding_format, body.dimensions)
    return answer_line(batch_id, line, request, msgspec.Raw(answer))


def _position(param: str | None, n_texts: int) -> int | None:
    """The `i` of `input[i]`."""
    digits = (param or "").removeprefix("input[").removesuffix("]")
    return int(digits) if digits.isdecimal() and int(digits) < n_texts else None


def _divided(texts: list[Text]) -> list[list[Text]]:
    """In parts of equal size: of 512 texts one is found in two rounds."""
    size = math.ceil(len(texts) / max(PARTS, math.isqrt(len(texts))))
    return [texts[at : at + size] for at in range(0, len(texts), size)]


def _shares(sizes: list[int], total: int) -> list[int]:
    """`total` divided in proportion, in whole numbers that add up to it."""
    whole, done, given = sum(sizes), 0, 0
    shares = []
    for size in sizes:
        done += size
        upto = round(total * done / whole)
        shares.append(upto - given)
        given = upto
    return shares
