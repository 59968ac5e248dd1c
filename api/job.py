"""One request between submission and its last frame: a small state machine fed by frames and by lost workers."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from api.job_types import Event, JobRefused, RequestFailed
from tasks.contracts import (
    AnyFrame,
    Delta,
    EmbedRequest,
    ErrorCode,
    Failed,
    Finished,
    GenerateRequest,
    Progress,
    Started,
    Vectors,
    claim_id,
)

MAX_ATTEMPTS = 2  #: a request whose worker died before it had sent anything runs once more
RESTARTABLE = frozenset({ErrorCode.ENGINE_LOST, ErrorCode.WORKER_LOST})


class JobState:
    """What this API process knows of one task. Used on the event loop only."""

    def __init__(
        self, request: GenerateRequest | EmbedRequest, queue: str, wait_s: float, patience_s: float = math.inf
    ) -> None:
        """`wait_s`: how long it may wait for a slot. `patience_s`: how long the client waits for the answer's head."""
        self.request = request
        self.id = request.id
        self.queue = queue
        self.attempt = 1
        self.created = time.monotonic()
        self._patience_ends = self.created + patience_s
        self._answer_by = self.created + request.deadline_ms / 1000 - time.time() if request.deadline_ms else math.inf
        self.deadline = min(self.created + wait_s, self._answer_by)  #: when the wait for a slot lapses
        self.estimate: tuple[float, float] | None = None  #: the wait that was expected (s), and when
        self.is_queued = False  #: this attempt's message is in the queue
        self.turn_at = 0.0  #: when it was sent ahead of its lane (starvation.py); 0: it was not
        self.waiting_before = 0  #: requests that waited on the lane when it was sent
        self.started_at: float | None = None
        self.worker: tuple[str, str] | None = None  #: name and boot id of the worker that runs it
        self.has_output = False  #: something of the answer has arrived, so it cannot be started again unnoticed
        self.ended = False
        self.may_restart = True  #: False: whoever sent it does that itself
        self.refused = False  #: this API process shuts down: the wait ends now
        self.hopeless_s: float | None = None  #: the wait that was expected, so long that it ends now
        self.next_seq = 0
        self.gap = False  #: a frame is missing: the ones behind it wait for a resend
        self.heard_at = self.created  #: when a frame came, or was asked for
        self.asked_at: float | None = None  #: when frames were asked for first, since the last that came
        self._early: dict[int, AnyFrame] = {}
        self._events: deque[Any] = deque()
        self._failure: RequestFailed | None = None
        self._changed = asyncio.Event()

    @property
    def claim(self) -> str:
        """What a worker claims to run this attempt."""
        return claim_id(self.id, self.attempt)

    # -- fed by the receiver -----------------------------------------------------------------------

    def feed(self, frame: AnyFrame) -> None:
        """Take a frame in any order; doubled ones and those of an earlier attempt are dropped."""
        if self.ended or frame.attempt != self.attempt:
            return
        self.heard_at = time.monotonic()
        self.asked_at = None
        if frame.seq == -1:
            self._take(frame)
            return
        if frame.seq < self.next_seq:
            return
        self._early[frame.seq] = frame
        while (following := self._early.pop(self.next_seq, None)) is not None and not self.ended:
            self.next_seq += 1
            self._take(following)
        self.gap = bool(self._early) and not self.ended

    def fail(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        if not self.ended:
            self._end_with(RequestFailed(code, message, param))
            self._changed.set()

    def wait_anew(self, wait_s: float) -> None:
        """It may wait for a slot for `wait_s` from now, but no longer than the client has said."""
        patience_ends = self._patience_ends if self.started_at is None else math.inf
        self.deadline = min(time.monotonic() + wait_s, self._answer_by, patience_ends)

    def restart(self) -> None:
        """Forget the attempt that was lost; frames of the next one count from 0."""
        self.attempt += 1
        self.next_seq = 0
        self.worker = None
        self.asked_at = None
        self.gap = False
        self.is_queued = False
        self.turn_at = 0.0
        self._early.clear()
        self._events.clear()

    def refuse(self) -> None:
        self.refused = True
        self.deadline = 0.0
        self._changed.set()

    def is_waiting(self) -> bool:
        """It is in the queue, and no worker is known to have it."""
        return self.is_queued and self.worker is None and not self.ended and not self.refused

    def give_up_hope(self, wait_s: float) -> None:
        """It would wait for so long that the client is better told now."""
        self.hopeless_s = wait_s
        self.deadline = 0.0
        self._changed.set()

    def is_given_up(self) -> bool:
        """Its wait ends now, unless a worker was faster."""
        return self.refused or self.hopeless_s is not None

    def can_restart(self) -> bool:
        return self.may_restart and not self.has_output and not self.ended and self.attempt < MAX_ATTEMPTS

    def _end_with(self, failure: RequestFailed) -> None:
        failure.queue_ms = self.queue_ms()
        self.ended = True
        self._failure = failure

    def _take(self, frame: AnyFrame) -> None:
        match frame:
            case Started():
                self.worker = (frame.worker, frame.boot_id)
                self.started_at = self.started_at or time.monotonic()
            case Failed():
                self._end_with(RequestFailed(frame.code, frame.message, frame.param))
            case Delta() if self._events and _goes_on(self._events[-1], frame):
                last = self._events[-1]
                self._events[-1] = msgspec.structs.replace(
                    frame,
                    text=last.text + frame.text,
                    tokens=last.tokens + frame.tokens,
                    logprobs=last.logprobs + frame.logprobs,
                )
            case Progress() if self._events and isinstance(self._events[-1], Progress):
                self._events[-1] = frame
            case _:
                self.has_output = self.has_output or not isinstance(frame, Progress)
                self.ended = isinstance(frame, Finished)
                self._events.append(frame)
        self._changed.set()

    # -- read by the request's handler -------------------------------------------------------------

    async def wait_started(self) -> bool:
        """True when it runs (or has ended well); False at the deadline. Raises RequestFailed."""
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                while self.started_at is None and not self._events and not self.is_given_up():
                    if self._failure is not None:
                        raise self._failure
                    await self._wait()
        except TimeoutError:
            return False
        if self._failure is not None and not self.has_output:
            raise self._failure
        return self.started_at is not None or bool(self._events)

    def queue_ms(self) -> float:
        """How long it waited."""
        return ((self.started_at or time.monotonic()) - self.created) * 1000

    async def events(self) -> AsyncGenerator[Event | Vectors]:
        """Everything after `started`, up to and including Finished. Raises RequestFailed."""
        while True:
            while self._events:
                event = self._events.popleft()
                yield event
                if isinstance(event, Finished):
                    return
            if self._failure is not None:
                raise self._failure
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class QueuedJob:
    """See api.job_types.Job. `wait_started` is awaited with the state until a worker runs it."""

    def __init__(self, state: JobState, wait_started: Callable[[JobState], Awaitable[None]]) -> None:
        self._state = state
        self._wait_started = wait_started
        self.id = state.id
        self.queue_ms = 0.0

    async def wait_started(self) -> None:
        try:
            await self._wait_started(self._state)
        except JobRefused as exc:
            exc.queue_ms = self._state.queue_ms()
            raise
        self.queue_ms = self._state.queue_ms()

    async def events(self) -> AsyncGenerator[Event]:
        async with aclosing(self._state.events()) as events:
            async for event in events:
                if not isinstance(event, Vectors):
                    yield event


def _goes_on(event: Any, delta: Delta) -> bool:
    """Whether `delta` is more of the text that `event` holds."""
    is_same = isinstance(event, Delta) and event.choice == delta.choice
    return is_same and event.is_reasoning is delta.is_reasoning
