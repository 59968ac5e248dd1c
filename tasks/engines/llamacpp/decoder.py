"""The decode loop: one thread that alone touches the device.

Each turn of the loop: calls of others (the embedder's), cancelled requests, new requests into free slots, one batch,
one sampled token for each slot that has logits.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tasks.contracts import FinishReason
from tasks.engines.base import DecodeFailed, EngineError, FrameSink
from tasks.engines.llamacpp.batch import ABORTED, Batch, Decode
from tasks.engines.llamacpp.generation import Generation
from tasks.engines.llamacpp.logits import Logits
from tasks.engines.llamacpp.model import ChatModel
from tasks.engines.llamacpp.prompt import Prompt
from tasks.engines.llamacpp.slots import Part, Slot, choose_slot, n_reusable, plan_step

log = logging.getLogger(__name__)

T = TypeVar("T")


class Decoder:
    """Owns the chat model. `submit`, `call`, `close` and tickets' `cancel` may be used from any thread."""

    def __init__(self, load: Callable[[], ChatModel], decode: Decode | None = None) -> None:
        """Start the thread and load the model on it. Raises what `load` raises.

        `decode` stands in for `llama_decode` in tests of its failures.
        """
        self._wake = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._submitted: deque[Generation] = deque()
        self._running: dict[int, Generation] = {}  # by slot index; decode thread only, as all below
        self._closing = False
        self._has_cancels = False  # some ticket was cancelled since the last look
        self._n_started = 0
        self._slots: list[Slot] = []
        self._decode = decode
        loaded: Future[ChatModel] = Future()
        self._thread = threading.Thread(target=self._run, args=(load, loaded), name="decode", daemon=True)
        self._thread.start()
        self.model = loaded.result()

    def submit(self, prompt: Prompt, sink: FrameSink) -> Generation:
        """Queue the request; requests get slots in the order they came."""
        generation = Generation(prompt, sink, on_cancel=self._note_cancel)
        with self._wake:
            if self._closing:
                raise EngineError("The engine is shutting down.")
            self._submitted.append(generation)
            self._wake.notify()
        return generation

    def call(self, function: Callable[[], T], /) -> T:
        """Run `function` on the decode thread, between two steps, and wait for its result or exception.

        Calls run in order; one that is waiting runs before the next step, so neither a long answer nor a long prompt
        delays it by more than one batch.
        """
        if threading.current_thread() is self._thread:
            return function()
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as exc:  # noqa: BLE001 - it is the caller's, who gets it
                done.set_exception(exc)

        with self._wake:
            if self._closing:
                raise EngineError("The engine is shutting down.")
            self._calls.append(run)
            self._wake.notify()
        return done.result()

    def close(self) -> None:
        """Cancel all requests, free the model, end the thread. Any number of times."""
        with self._wake:
            self._closing = True
            self._batch.abort.set(True)
            self._wake.notify()
        self._thread.join()

    def _note_cancel(self, generation: Generation) -> None:
        with self._wake:
            self._has_cancels = True
            if self._running and all(running.is_cancelled for running in list(self._running.values())):
                self._batch.abort.set(True)  # nobody waits for the batch that runs
            self._wake.notify()

    # -- the decode thread -----------------------------------------------------------------------

    def _run(self, load: Callable[[], ChatModel], loaded: "Future[ChatModel]") -> None:
        try:
            model = load()
        except BaseException as exc:  # noqa: BLE001 - the thread that waits for the model gets it
            loaded.set_exception(exc)
            return
        self._slots = [Slot(index) for index in range(model.n_slots)]
        self._batch = Batch(model, self._decode) if self._decode else Batch(model)
        self._logits = Logits(model.context, model.vocab.n_tokens)
        self.model = model
        loaded.set_result(model)
        try:
            while self._wait_for_work():
                self._turn()
        finally:
            self._shut_down(model)

    def _wait_for_work(self) -> bool:
        """False: the engine closes."""
        with self._wake:
            while not (self._closing or self._calls or self._submitted or self._running):
                self._wake.wait()
            return not self._closing

    def _turn(self) -> None:
        try:
            for _ in range(len(self._calls)):  # those that come meanwhile have their turn after the next step
                self._calls.popleft()()
            self._drop_cancelled()
            self._fill_slots()
            if parts := plan_step(self._slots, self.model.n_batch, self.model.n_ubatch).parts:
                self._step(parts)
        except Exception:
            log.exception("the decode loop failed: all its requests end")
            for generation in list(self._running.values()):
                self._fail_after_bug(generation)

    def _drop_cancelled(self) -> None:
        if not self._has_cancels:
            return
        with self._wake:
            self._has_cancels = False
            self._batch.abort.set(self._closing)
            waiting = [generation for generation in self._submitted if generation.is_cancelled]
            for generation in waiting:
                self._submitted.remove(generation)
        for generation in [*waiting, *(running for running in self._running.values() if running.is_cancelled)]:
            self._release(generation)
            generation.confirm_cancel()

    def _fill_slots(self) -> None:
        while self._submitted:
            generation = self._submitted[0]
            if not (choice := choose_slot(self._slots, generation.next_tokens)):
                return
            self._submitted.popleft()
            slot, n_kept = choice
            self._running[slot.index] = generation
            self._begin_choice(generation, slot, n_kept)

    def _begin_choice(self, generation: Generation, slot: Slot, n_kept: int) -> None:
        """The slot, which holds the first `n_kept` tokens of the next choice's prompt, is the request's."""
        if not self._batch.keep(slot, n_kept):
            n_kept = 0
        self._n_started += 1
        slot.begin(generation.next_tokens, n_kept, self._n_started)
        generation.begin_choice(slot, self.model, self._logits)

    def _step(self, parts: list[Part]) -> None:
        """One batch. When it fails, each slot's part goes alone: only those that fail by themselves end."""
        status, rows = self._batch.run(parts)
        if status == 0:
            for part in parts:
                generation = self._running[part.slot.index]
                try:
                    self._advance(generation, part, rows.get(part.slot.index))
                except DecodeFailed as exc:
                    self._fail(generation, exc.message)
                except Exception:
                    log.exception("a request failed", extra={"request_id": generation.prompt.id})
                    self._fail_after_bug(generation)
            return
        kept = [part for part in parts if self._roll_back(part.slot)]
        if status == ABORTED:
            return  # the cancelled requests leave at the next turn; others, if any, are planned again
        log.error("llama_decode failed", extra={"status": status, "slots": len(parts)})
        if len(parts) > 1:
            for part in kept:
                self._step([part])
        elif kept:
            self._fail(self._running[parts[0].slot.index], f"The model failed to decode (llama.cpp status {status}).")

    def _roll_back(self, slot: Slot) -> bool:
        """Take what a failed batch left out of the cache. False: the slot's state is lost, its request has ended."""
        if self._batch.keep(slot, slot.n_kept):
            return True
        generation = self._running[slot.index]
        if generation.is_cancelled:
            slot.forget()
        else:
            self._fail(generation, "The model failed to decode, and its state is lost.")
        return False

    def _advance(self, generation: Generation, part: Part, row: int | None) -> None:
        """The part is in the cache: report it, sample when the slot has nothing left to decode."""
        slot = part.slot
        slot.n_kept += part.n_tokens
        if slot.is_prefilling:
            generation.prefilled(slot.n_kept)
        if row is None:
            return
        slot.is_prefilling = False
        if not self._batch.has_numbers(row):
            self._fail(generation, "The model's output is not a number.")
            return
        token = generation.sample(self.model.context, row)
        if token is None:
            self._finish(generation, FinishReason.STOP)
        elif not 0 <= token < self.model.vocab.n_tokens:
            self._fail(generation, "The model gave no valid token.")
        elif reason := generation.add(token):
            self._finish(generation, reason)
        else:
            slot.tokens.append(token)

    def _finish(self, generation: Generation, reason: FinishReason) -> None:
        """The choice that runs is whole: the next one begins in the same slot, or the request ends."""
        slot = generation.slot
        if slot and generation.has_more:
            generation.finish_choice(reason)
            self._begin_choice(generation, slot, n_reusable(slot, generation.next_tokens))
            return
        self._release(generation)
        generation.finish(reason)

    def _fail(self, generation: Generation, message: str) -> None:
        """End a request without an answer. Nothing of its slot is trusted any more."""
        if slot := generation.slot:
            self._batch.keep(slot, 0)
            slot.forget()
        self._release(generation)
        generation.fail(DecodeFailed(message))

    def _fail_after_bug(self, generation: Generation) -> None:
        try:
            self._fail(generation, "The engine failed at a decode step.")
        except Exception:
            log.exception("a request's end could not be told", extra={"request_id": generation.prompt.id})

    def _release(self, generation: Generation) -> None:
        """Free the slot before the request's end is told: who hears of it may submit the next one at once."""
        if slot := generation.slot:
            self._running.pop(slot.index, None)
            slot.end()
        generation.free()

    def _shut_down(self, model: ChatModel) -> None:
        """Nobody is left waiting."""
        with self._wake:
            self._closing = True
        for call in self._calls:
            call()
        for generation in [*self._running.values(), *self._submitted]:
            self._release(generation)
            generation.confirm_cancel()
        self._batch.free()
        model.free()
