"""An in-memory queue for the route tests: scripted frames, refusals, and a record of what was cancelled.

It keeps the promises of `api.job_types`: a job left before its end is cancelled, whatever phase it is in, and
`wait_started` raises what ends a request before its first token.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from api.job_types import EmbeddingAnswer, Event, Job, ModelNotFound, QueueReport, WrongModelKind
from api.keys import Caller
from tasks.contracts import (
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Lane,
    ModelInfo,
    Progress,
    Query,
    Timings,
    TokenLogprob,
    ToolCall,
    Usage,
    WorkerState,
    WorkerStatus,
)

CHAT = "chat/model"
EMBED = "embed-model"
WIDTH = 8
MODELS = [
    ModelInfo(id=CHAT, kind="chat", created=1_700_000_000, n_ctx=2048),
    ModelInfo(id=EMBED, kind="embedding", created=1_700_000_001, n_ctx=512, width=WIDTH),
]

#: an event to deliver, an exception to raise, or something to wait for
Step = Event | Exception | asyncio.Event


def delta(text: str, tokens: int = 1, choice: int = 0) -> Delta:
    return Delta(id="", attempt=1, seq=0, text=text, tokens=tokens, choice=choice)


def reasoning(text: str, choice: int = 0) -> Delta:
    return Delta(id="", attempt=1, seq=0, text=text, tokens=1, choice=choice, is_reasoning=True)


def scored(*tokens: tuple[str, float], choice: int = 0) -> Delta:
    """A delta of tokens with their log probabilities; each has itself and `?` as the most probable ones."""
    logprobs = [
        TokenLogprob(text.encode(), logprob, [(text.encode(), logprob), (b"?", -9.0)]) for text, logprob in tokens
    ]
    text = "".join(text for text, _ in tokens)
    return Delta(id="", attempt=1, seq=0, text=text, tokens=len(tokens), choice=choice, logprobs=logprobs)


def call(index: int = 0, name: str = "", arguments: str = "", choice: int = 0) -> ToolCall:
    """A call begins where `name` is given."""
    call_id = f"call_{choice}{index}" if name else ""
    return ToolCall(
        id="", attempt=1, seq=0, choice=choice, index=index, call_id=call_id, name=name, arguments=arguments
    )


def ended(choice: int, reason: FinishReason = FinishReason.STOP) -> ChoiceFinished:
    return ChoiceFinished(id="", attempt=1, seq=0, choice=choice, finish_reason=reason)


def progress(done: int, total: int) -> Progress:
    return Progress(id="", attempt=1, seq=0, done=done, total=total)


def finished(reason: FinishReason = FinishReason.STOP) -> Finished:
    usage = Usage(prompt_tokens=11, completion_tokens=2, cached_tokens=3, reasoning_tokens=1)
    timings = Timings(prompt_n=8, prompt_ms=4.0, predicted_n=2, predicted_ms=8.0)
    return Finished(id="", attempt=1, seq=0, finish_reason=reason, usage=usage, timings=timings)


HELLO: list[Step] = [delta("Hello"), delta(" world"), finished()]


def worker(status: WorkerStatus = WorkerStatus.READY, message: str = "", progress: float = 0.0) -> WorkerState:
    return WorkerState(name="w1", boot_id="b1", status=status, message=message, progress=progress, models=MODELS)


class FakeJob:
    def __init__(self, jobs: "FakeJobs", request: GenerateRequest) -> None:
        self.id = request.id
        self.queue_ms = 12.4
        self.has_ended = False
        self._jobs = jobs

    async def wait_started(self) -> None:
        for step in self._jobs.waiting:
            await self._do(step)
        self._jobs.has_started.set()

    async def events(self) -> AsyncGenerator[Event]:
        for step in self._jobs.running:
            await self._do(step)
            if not isinstance(step, Exception | asyncio.Event):
                self.has_ended = isinstance(step, Finished)
                yield step

    async def _do(self, step: Step) -> None:
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, Exception):
            self.has_ended = True
            raise step


class FakeJobs:
    """`waiting` are the steps before a worker takes the request, `running` those after it."""

    api_id = "api-1"

    def __init__(self, models: Sequence[ModelInfo] = MODELS, workers: Sequence[WorkerState] | None = None) -> None:
        self.waiting: list[Step] = []
        self.running: list[Step] = list(HELLO)
        self.refusal: Exception | None = None  #: raised by `require`
        self.embed_steps: list[Exception | asyncio.Event] = []
        self.truncated: list[int] = []
        self.reachable = True
        self.submitted: list[GenerateRequest] = []
        self.patience_s: list[float | None] = []
        self.embedded: list[list[str]] = []
        self.embedded_in: list[tuple[Lane, int]] = []  #: lane and share of each
        self.cancelled: list[str] = []
        self.deadlines_ms: list[int] = []  #: of each embeddings request
        self.queries: list[Query] = []
        self.queue_report: QueueReport | Exception = QueueReport([], [], None, 0)
        self.asked: list[tuple[Caller, list[str]]] = []  #: who asked for which ids
        self.reply: dict[str, Any] | Exception = {}  #: to every query
        self.was_submitted = asyncio.Event()
        self.has_started = asyncio.Event()
        self.was_cancelled = asyncio.Event()
        self._models = list(models)
        self._workers = [worker()] if workers is None else list(workers)

    def workers(self) -> list[WorkerState]:
        return self._workers

    def models(self) -> list[ModelInfo]:
        return self._models

    def is_reachable(self) -> bool:
        return self.reachable

    def require(self, model: str, kind: str) -> ModelInfo:
        if self.refusal is not None:
            raise self.refusal
        found = {info.id: info for info in self._models}.get(model)
        if found is None:
            raise ModelNotFound(model, [info.id for info in self._models])
        if found.kind != kind:
            raise WrongModelKind(f"The model '{model}' serves {found.kind}, not {kind}.")
        return found

    @asynccontextmanager
    async def submit(self, request: GenerateRequest, patience_s: float | None = None) -> AsyncIterator[Job]:
        self.submitted.append(request)
        self.patience_s.append(patience_s)
        self.was_submitted.set()
        job = FakeJob(self, request)
        try:
            yield job
        finally:
            if not job.has_ended:
                self._cancel(request.id)

    async def embed(
        self,
        request_id: str,
        model: str,
        texts: list[str],
        patience_s: float | None = None,
        lane: Lane = Lane.INTERACTIVE,
        share: int = 0,
        caller: str = "",
        deadline_ms: int = 0,
    ) -> EmbeddingAnswer:
        self.embedded.append(texts)
        self.embedded_in.append((lane, share))
        self.deadlines_ms.append(deadline_ms)
        self.patience_s.append(patience_s)
        self.was_submitted.set()
        try:
            for step in self.embed_steps:
                if isinstance(step, Exception):
                    raise step
                await step.wait()
        except asyncio.CancelledError:
            self._cancel(request_id)
            raise
        vectors = [vector(text).tobytes() for text in texts]
        return EmbeddingAnswer(WIDTH, vectors, 3 * len(texts), self.truncated, 7.6)

    async def queue(self, caller: Caller, ids: Sequence[str]) -> QueueReport:
        self.asked.append((caller, list(ids)))
        if isinstance(self.queue_report, Exception):
            raise self.queue_report
        return self.queue_report

    async def query(self, model: str, query: Query) -> dict[str, Any]:
        self.require(model, "chat")
        self.queries.append(query)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    def _cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.was_cancelled.set()


def vector(text: str) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """A unit vector that depends on the text alone."""
    raw = np.random.default_rng(list(text.encode())).normal(size=WIDTH)
    return (raw / np.linalg.norm(raw)).astype("<f4")
