"""Control messages from the API to an engine process: cancel, send frames again, answer a question."""

import logging
import threading
import time
from collections.abc import Callable

import msgspec
import redis

from tasks.contracts import Control, Query, cancelled_key, control_channel

log = logging.getLogger(__name__)

decoder = msgspec.msgpack.Decoder(Control)


class ControlListener:
    """Listens on the worker's control channel, on a thread of its own, for as long as the process lives.

    Pub/sub forgets what was said while the connection was down, so once a second it also looks for the cancel keys of
    what runs.
    """

    POLL_S = 1.0

    def __init__(
        self,
        client: redis.Redis,
        worker: str,
        cancel: Callable[[str], None],
        resend: Callable[[str, int], None],
        running_ids: Callable[[], list[str]],
        answer: Callable[[str, Query], None],
    ) -> None:
        self._redis = client
        self._channel = control_channel(worker)
        self._cancel = cancel
        self._resend = resend
        self._running_ids = running_ids
        self._is_connected = True
        self._answer = answer
        self._thread = threading.Thread(target=self._run, name="control-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self._listen()
            except (redis.RedisError, OSError) as exc:
                if self._is_connected:
                    log.warning("control channel lost: %s", type(exc).__name__)
            except Exception:  # without this thread nobody could cancel anything any more
                log.exception("control channel failed")
            self._is_connected = False
            pause.wait(0.2)

    def _listen(self) -> None:
        with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(self._channel)
            looked_at = 0.0
            while True:
                message = pubsub.get_message(timeout=self.POLL_S)
                self._is_connected = True
                if message is not None and message["type"] == "message":
                    self._handle(message["data"])
                if time.monotonic() >= looked_at + self.POLL_S:
                    self._look_for_cancels()
                    looked_at = time.monotonic()

    def _look_for_cancels(self) -> None:
        ids = self._running_ids()
        if not ids:
            return
        for request_id, value in zip(ids, self._redis.mget([cancelled_key(i) for i in ids]), strict=True):
            if value is not None:
                self._cancel(request_id)

    def _handle(self, data: bytes) -> None:
        try:
            control = decoder.decode(data)
        except msgspec.DecodeError:
            log.error("a message on the control channel is not a Control")
            return
        if control.op == "cancel":
            self._cancel(control.id)
        elif control.op == "resend":
            self._resend(control.id, control.from_seq)
        elif control.op == "query" and control.query is not None:
            self._answer(control.id, control.query)
