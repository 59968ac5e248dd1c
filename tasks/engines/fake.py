"""The fake engine: deterministic, without a model, for tests and load tests (`LIS_BACKEND=fake`).

It keeps the contracts of the real ones: one decode thread, up to LIS_PARALLEL slots together, a cancel is seen within a
step, prefill with progress, `max_tokens`, `stop`, the window. A token is a word between white space.

The answer depends on the prompt and the choice (temperature and seed change nothing) and ends after 8 to 64 tokens.
Where a tool must be called or JSON is demanded, it is the smallest value of the schema. Log probabilities are made up.
The prompt may ask for more:

- `Repeat exactly: X` in the last user message: the answer is X. `MARK-123` in it: the answer begins with that.
- `Never stop` anywhere: the answer ends at `max_tokens`.
- `FAKE-CLOCK` anywhere: each token is the time at which it is put, in ns of the machine's monotonic clock.
- `FAKE-CRASH`: the process dies of SIGKILL when three tokens are out. `FAKE-HANG`: the decode thread hangs there, deaf
  to cancels, until `close`. `FAKE-ERROR`: the request fails there with DecodeFailed.

LIS_FAKE_TOKEN is the time of one step in seconds, in which each slot gets one token; at 0 it runs flat out and puts
many tokens into a delta. LIS_FAKE_PREFILL is the time before the first token of a prompt of more than 200 tokens.

Embeddings: an embedding text of more than 200 tokens takes LIS_FAKE_PREFILL, too. The word `FAKE-ERROR` fails it, and
with `FAKE-CRASH` the process dies.
"""

import hashlib
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from tasks.contracts import GenerateRequest, Timings, Usage
from tasks.engines import Engines, Report
from tasks.engines.base import (
    Cancelled,
    ContextLengthExceeded,
    DecodeFailed,
    EmbeddingResult,
    Float32Array,
    FrameSink,
)
from tasks.engines.fake_text import Answer, WordTokens, answer, count_tokens, made_up_logprobs, prompt_texts
from tasks.settings import Settings

LONG_PROMPT_TOKENS = 200  #: longer prompts take LIS_FAKE_PREFILL
PREFILL_CHUNK_TOKENS = 128
FLAT_OUT_TOKENS = 64  #: tokens of a delta when a step takes no time
EMBEDDING_WIDTH = 384


def load(settings: Settings, report: Report) -> Engines:
    """See tasks/engines/__init__.py."""
    report("loading the fake engine")
    embedding = FakeEmbeddingEngine(settings) if settings.embedding_enabled else None
    return Engines(FakeChatEngine(settings), embedding)


class FakeRun:
    """One submitted request, and its Ticket. All but `cancel` is called on the decode thread."""

    def __init__(
        self, engine: "FakeChatEngine", sink: FrameSink, answers: list[Answer], n_prompt: int, n_top: int | None
    ) -> None:
        """`answers`: one for each choice. `n_top`: alternatives in log probabilities; None: without those."""
        self._engine = engine
        self._sink = sink
        self._answers = answers
        self._choice = 0
        self._said = 0  # tokens of the choice that runs
        self._n_prompt = n_prompt
        self._n_top = n_top
        n_chunks = math.ceil(n_prompt / PREFILL_CHUNK_TOKENS) if n_prompt > LONG_PROMPT_TOKENS else 1
        self._chunk_tokens = math.ceil(n_prompt / n_chunks)
        self._chunk_s = engine.prefill_s / n_chunks if n_prompt > LONG_PROMPT_TOKENS else 0.0
        self._prefilled = self._generated = 0
        self._admitted_s = self._prefilled_s = 0.0
        self.due_s = 0.0  #: monotonic time of the next step
        self.is_cancelled = False
        self.is_done = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._engine.wake()

    def admit(self, now_s: float) -> None:
        self._admitted_s = now_s
        self.due_s = now_s + self._chunk_s

    def step(self, now_s: float) -> None:
        """One prefill chunk or one decode step, whose time has passed at `now_s`; or the end of a cancelled one."""
        if self.is_cancelled:
            self._end()
            self._sink.cancelled(self._usage())
        elif self._prefilled < self._n_prompt:
            self._prefilled = min(self._prefilled + self._chunk_tokens, self._n_prompt)
            self._prefilled_s = now_s
            self.due_s += self._chunk_s if self._prefilled < self._n_prompt else self._engine.token_s
            self._sink.progress(self._prefilled, self._n_prompt)
        else:
            self._generate()
            self.due_s += self._engine.token_s
            if self._said == len(self._answers[self._choice].pieces):
                self._conclude(self._answers[self._choice], time.monotonic())

    def _generate(self) -> None:
        n_tokens = FLAT_OUT_TOKENS if self._engine.token_s == 0 else 1
        answer = self._answers[self._choice]
        pieces = answer.pieces[self._said : self._said + n_tokens]
        is_first = not self._said
        self._said += len(pieces)
        self._generated += len(pieces)
        text = f" {time.monotonic_ns()}" * len(pieces) if answer.is_clock else "".join(pieces)
        if answer.calls:
            call_id = f"call_{id(self):x}{self._choice}" if is_first else ""
            self._sink.tool_call(self._choice, 0, call_id, answer.calls if is_first else "", text)
        elif text:
            logprobs = [] if self._n_top is None else made_up_logprobs(pieces, self._n_top)
            self._sink.delta(text, len(pieces), self._choice, logprobs=logprobs)

    def _conclude(self, answer: Answer, now_s: float) -> None:
        """The choice is said."""
        if answer.trap == "FAKE-CRASH":
            os.kill(os.getpid(), signal.SIGKILL)
        elif answer.trap == "FAKE-HANG":
            self._engine.hang()
            self.is_cancelled = True  # the engine is closing
        elif answer.trap == "FAKE-ERROR":
            self._end()
            self._sink.failed(DecodeFailed("the model failed to decode (asked for by the prompt)"))
        elif self._choice + 1 < len(self._answers):
            self._sink.choice_finished(self._choice, answer.reason)
            self._choice += 1
            self._said = 0
        else:
            self._end()
            self._sink.finished(answer.reason, self._usage(), self._timings(now_s))

    def _end(self) -> None:
        self.is_done = True

    def _usage(self) -> Usage:
        return Usage(prompt_tokens=self._n_prompt, completion_tokens=self._generated)

    def _timings(self, now_s: float) -> Timings:
        prompt_ms, predicted_ms = (self._prefilled_s - self._admitted_s) * 1000, (now_s - self._prefilled_s) * 1000
        return Timings(self._n_prompt, prompt_ms, self._generated, predicted_ms)


class FakeChatEngine:
    """See ChatEngine and this module's docstring."""

    def __init__(self, settings: Settings) -> None:
        self.n_slots = settings.parallel
        self.n_ctx = settings.n_ctx
        self.prefill_s = settings.fake_prefill_s
        self.token_s = settings.fake_token_s
        self._max_answer = settings.max_model_length
        self._words = WordTokens()
        self._changed = threading.Condition()
        self._waiting: deque[FakeRun] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._decode_loop, name="fake-decode", daemon=True)
        self._thread.start()

    def submit(self, request: GenerateRequest, sink: FrameSink) -> FakeRun:
        sizes = [count_tokens(text) for text in prompt_texts(request)]
        for index, size in enumerate(sizes):
            if size >= self.n_ctx:
                name = f"prompt[{index}]" if len(sizes) > 1 else "prompt"
                raise ContextLengthExceeded(size, self.n_ctx, name if request.messages is None else "messages")
        wanted = self._max_answer if request.max_tokens is None else min(request.max_tokens, self._max_answer)
        answers = [
            answer(request, min(wanted, self.n_ctx - size), index * request.n + choice)
            for index, size in enumerate(sizes)
            for choice in range(request.n)
        ]
        run = FakeRun(self, sink, answers, sum(sizes), request.logprobs)
        with self._changed:
            if self._closing.is_set():
                raise DecodeFailed("the engine is closed")
            self._waiting.append(run)
            self._changed.notify()
        return run

    def tokenize_text(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return self._words.ids(text)

    def token_pieces(self, tokens: Sequence[int]) -> list[bytes]:
        return self._words.pieces(tokens)

    def render_prompt(self, request: GenerateRequest) -> str:
        return "".join(prompt_texts(request))

    def count_tokens(self, request: GenerateRequest) -> int:
        return sum(map(count_tokens, prompt_texts(request)))

    def close(self) -> None:
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join()

    def wake(self) -> None:
        """Make the decode thread look at its runs again."""
        with self._changed:
            self._changed.notify()

    def hang(self) -> None:
        """Block the decode thread, as a kernel that never returns would, but let `close` end it."""
        self._closing.wait()

    def _decode_loop(self) -> None:
        running: list[FakeRun] = []
        while self._wait_for_work(running):
            now_s = time.monotonic()
            for run in running:
                if run.is_cancelled or run.due_s <= now_s:
                    run.step(now_s)
            running[:] = [run for run in running if not run.is_done]

    def _wait_for_work(self, running: list[FakeRun]) -> bool:
        """Return when a run has something to do; False when the engine is closed and nothing is left."""
        with self._changed:
            self._admit(running)
            self._changed.wait_for(lambda: self._is_due(running), timeout=self._patience_s(running))
            self._admit(running)
            if self._closing.is_set():
                for run in (*running, *self._waiting):
                    run.is_cancelled = True
            return bool(running or self._waiting or not self._closing.is_set())

    def _admit(self, running: list[FakeRun]) -> None:
        while self._waiting and (len(running) < self.n_slots or self._waiting[0].is_cancelled):
            run = self._waiting.popleft()
            run.admit(time.monotonic())
            running.append(run)

    def _is_due(self, running: list[FakeRun]) -> bool:
        """Something is to be done now. Called with the lock held."""
        now_s = time.monotonic()
        has_news = bool(self._waiting) and len(running) < self.n_slots
        cancelled = any(run.is_cancelled for run in (*running, *self._waiting))
        return self._closing.is_set() or has_news or cancelled or any(run.due_s <= now_s for run in running)

    def _patience_s(self, running: list[FakeRun]) -> float | None:
        return max(min(run.due_s for run in running) - time.monotonic(), 0) if running else None


class FakeEmbeddingEngine:
    """See EmbeddingEngine: a text's vector is a function of its words, and no two texts are alike."""

    def __init__(self, settings: Settings) -> None:
        self.width = EMBEDDING_WIDTH
        self.n_ctx = settings.embedding_n_ctx
        self._prefill_s = settings.fake_prefill_s
        self._prefix = settings.embedding_input_prefix
        self._closing = threading.Event()

    def embed(self, texts: Sequence[str], is_cancelled: Callable[[], bool] = lambda: False) -> EmbeddingResult:
        tokens = [(self._prefix + text).split() or [""] for text in texts]
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for index, words in enumerate(tokens):
            if is_cancelled():
                raise Cancelled
            if "FAKE-CRASH" in words:
                os.kill(os.getpid(), signal.SIGKILL)
            if "FAKE-ERROR" in words:
                name = f"input[{index}]"
                raise DecodeFailed(f"{name}: the model failed to decode (asked for by the text)", param=name)
            self._compute(len(words), is_cancelled)
            vectors[index] = _unit_vector(words[: self.n_ctx])
        truncated = [index for index, words in enumerate(tokens) if len(words) > self.n_ctx]
        lengths = [min(len(words), self.n_ctx) for words in tokens]
        return EmbeddingResult(vectors, sum(lengths), truncated, lengths)

    def close(self) -> None:
        self._closing.set()

    def _compute(self, n_tokens: int, is_cancelled: Callable[[], bool]) -> None:
        """Take the time of a long text, in pieces between which a cancel is seen."""
        n_steps = math.ceil(n_tokens / PREFILL_CHUNK_TOKENS) if n_tokens > LONG_PROMPT_TOKENS and self._prefill_s else 0
        for _ in range(n_steps):
            self._closing.wait(self._prefill_s / n_steps)
            if is_cancelled():
                raise Cancelled


def _unit_vector(words: list[str]) -> Float32Array:
    seed = hashlib.sha256(" ".join(words).encode("utf-8", "replace")).digest()
    vector = np.random.default_rng(int.from_bytes(seed)).standard_normal(EMBEDDING_WIDTH)
    return (vector / np.linalg.norm(vector)).astype(np.float32)
