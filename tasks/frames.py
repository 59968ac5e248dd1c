"""Frames on their way from the engine process to the API processes, over Redis pub/sub.

Pub/sub forgets what nobody hears, so every frame has a number within its request: the publisher keeps what it sent,
and a receiver that sees a gap, or that reconnects, asks for what it lacks (`Control(op="resend")`). A Redis restart
in mid-stream thus loses no token.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import redis
import redis.asyncio
import redis.backoff

from tasks.contracts import AnyFrame, Delta, Failed, Frame, ToolCall, reply_channel
from tasks.outbox import Outbox

log = logging.getLogger(__name__)

HISTORY_S = 120.0  #: how long the frames of an ended request can still be asked for
ABANDONED_AFTER_S = 5.0  #: a reply channel without listeners for so long has no API process behind it
FRAMES_PER_MESSAGE = 500
#: Tokens that come faster than this leave together: on its way a message takes 0.7 ms of CPU in three processes, which
#: on a small machine is time that the decode threads lack. An answer's first token, and its end, wait for nothing.
MERGE_WINDOW_S = 0.015

STREAMED = (Delta, ToolCall)

encoder = msgspec.msgpack.Encoder()
decoder = msgspec.msgpack.Decoder(list[AnyFrame])


def sync_redis(url: str, **options: Any) -> redis.Redis:
    """A client that fails within 2 s. redis-py's own retries block for 3.4 s or more when the broker stays down."""
    settings: dict[str, Any] = {"socket_timeout": 2.0, "retry": None, "health_check_interval": 0, **options}
    if not url.startswith("unix://"):
        settings |= {"socket_connect_timeout": 2.0, "socket_keepalive": True}
    return redis.Redis.from_url(url, **settings)


class FramePublisher:
    """Sends frames to the reply channels on a thread of its own, so that the decode loop never waits for Redis.

    `on_abandoned(request_id)` is called, on that thread, when nobody has listened to a request's channel for
    `abandoned_after_s`: its API process is gone.
    """

    def __init__(
        self,
        client: redis.Redis,
        on_abandoned: Callable[[str], None],
        abandoned_after_s: float = ABANDONED_AFTER_S,
        merge_window_s: float = MERGE_WINDOW_S,
    ) -> None:
        self._redis = client
        self._on_abandoned = on_abandoned
        self._abandoned_after_s = abandoned_after_s
        self._merge_window_s = merge_window_s
        self._cond = threading.Condition()
        self._outboxes: dict[str, Outbox] = {}
        self._dirty: dict[str, Outbox] = {}
        self._unsent: dict[str, list[AnyFrame]] = {}
        self._unheard_since: dict[str, float] = {}
        self._sent_at = 0.0
        self._is_reachable = True
        self._is_urgent = False  #: something was put that is not to wait for more
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="frame-publisher", daemon=True)
        self._thread.start()

    def open(self, request_id: str, attempt: int, reply_to: str) -> Outbox:
        with self._cond:
            outbox = self._outboxes[request_id] = Outbox(self.put, request_id, attempt, reply_to)
            return outbox

    def put(self, outbox: Outbox, kind: type[Frame], fields: tuple[Any, ...]) -> None:
        with self._cond:
            if not outbox.add(kind, fields):
                return  # the publisher has been told of this outbox already
            self._dirty[outbox.request_id] = outbox
            if kind not in STREAMED or not outbox.is_streaming:
                self._is_urgent = True
            outbox.is_streaming = kind in STREAMED
            self._cond.notify()

    def end(self, outbox: Outbox) -> None:
        """Nothing more will be put; the history is kept for HISTORY_S."""
        with self._cond:
            outbox.ended_at = time.monotonic()

    def resend(self, request_id: str, from_seq: int) -> bool:
        """Send the frames from `from_seq` on again. False: this process does not know the request."""
        with self._cond:
            outbox = self._outboxes.get(request_id)
            if outbox is None:
                return False
            self._unsent.setdefault(outbox.channel, []).extend(outbox.history[from_seq:])
            self._is_urgent = True
            self._cond.notify()
            return True

    def is_flushed(self) -> bool:
        with self._cond:
            return not self._dirty and not self._unsent

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is pending, for at most `timeout_s`, and end the thread."""
        with self._cond:
            self._stopping = True
            self._cond.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        delay_s = 0.0
        while True:
            with self._cond:
                if delay_s:
                    self._cond.wait(delay_s)
                elif not self._dirty and not self._unsent:
                    if self._stopping:
                        return
                    self._cond.wait(5.0)
                self._wait_for_more()
                self._collect()
            try:
                delay_s = self._send()
            except Exception:  # this thread must live on; who lacks frames asks for them
                log.exception("frames not sent")
                delay_s = 0.05

    def _wait_for_more(self) -> None:
        """Let tokens of running answers gather until `merge_window_s` after what was sent last."""
        window_end = self._sent_at + self._merge_window_s
        while self._dirty and not self._is_urgent and not self._stopping:
            left_s = window_end - time.monotonic()
            if left_s <= 0:
                break
            self._cond.wait(left_s)
        self._is_urgent = False

    def _collect(self) -> None:
        """Move pending items into `_unsent`, and forget old histories."""
        for outbox in self._dirty.values():
            self._unsent.setdefault(outbox.channel, []).extend(outbox.number())
        self._dirty = {}
        horizon = time.monotonic() - HISTORY_S
        old = [key for key, box in self._outboxes.items() if box.ended_at is not None and box.ended_at < horizon]
        for key in old:
            del self._outboxes[key]

    def _send(self) -> float:
        """Publish all that is unsent. Returns the seconds to wait before the next try (0: nothing is left over)."""
        with self._cond:
            batches = [
                (channel, frames[at : at + FRAMES_PER_MESSAGE])
                for channel, frames in self._unsent.items()
                for at in range(0, len(frames), FRAMES_PER_MESSAGE)
            ]
            self._unsent = {}
        if not batches:
            return 0.0
        try:
            pipe = self._redis.pipeline(transaction=False)
            for channel, frames in batches:
                pipe.publish(channel, encoder.encode(frames))
            heard = pipe.execute()
            self._sent_at = time.monotonic()
            self._is_reachable = True
        except redis.RedisError as exc:
            if self._is_reachable:
                log.warning("frames wait for redis: %s", type(exc).__name__)
            self._is_reachable = False
            self._unheard_since.clear()  # nobody can listen to a server that is away
            heard = [None] * len(batches)
        return self._settle(batches, heard)

    def _settle(self, batches: list[tuple[str, list[AnyFrame]]], heard: list[int | None]) -> float:
        """Put back what nobody got, and give up channels that nobody has listened to for long."""
        now = time.monotonic()
        left: dict[str, list[AnyFrame]] = {}
        for (channel, frames), listeners in zip(batches, heard, strict=True):
            if listeners:
                self._unheard_since.pop(channel, None)
            elif listeners == 0 and now - self._unheard_since.setdefault(channel, now) > self._abandoned_after_s:
                for request_id in {frame.id for frame in frames}:
                    self._on_abandoned(request_id)
            else:
                left.setdefault(channel, []).extend(frames)
        if not left:
            return 0.0
        with self._cond:
            for channel, frames in left.items():
                self._unsent[channel] = frames + self._unsent.get(channel, [])
        return 0.05


def publish_failure(client: redis.Redis, reply_to: str, failed: Failed) -> int:
    """Tell an API process that a request has ended, from outside the engine (`seq` -1). Returns the listeners."""
    return int(client.publish(reply_channel(reply_to), encoder.encode([failed])))


class FrameReceiver:
    """The API's end: one subscription per process, made at start, for all of its requests.

    `on_frame` is called on the event loop for each frame; it must not block. `on_connected` is awaited after every
    (re)subscription: frames may have been missed.
    """

    PING_EVERY_S = 2.0
    SILENT_AFTER_S = 6.0
    SUBSCRIBE_TIMEOUT_S = 5.0

    def __init__(
        self, url: str, api_id: str, on_frame: Callable[[AnyFrame], None], on_connected: Callable[[], Awaitable[None]]
    ) -> None:
        # No socket timeout: redis-py 8 gives up after 5 s by default, shorter than a quiet channel may be. A peer
        # that is gone is noticed by the pings instead.
        self._redis = redis.asyncio.Redis.from_url(url, socket_timeout=None, retry=None)
        self._channel = reply_channel(api_id)
        self._on_frame = on_frame
        self._on_connected = on_connected
        self._task: asyncio.Task[None] | None = None
        self.is_connected = False

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="frame-receiver")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._redis.aclose()

    async def _run(self) -> None:
        delay_s = 0.05
        while True:
            try:
                await self._listen()
            except (redis.RedisError, OSError) as exc:
                if self.is_connected:
                    log.warning("reply channel lost: %s", type(exc).__name__)
            except Exception:  # without this task nobody would hear anything any more
                log.exception("reply channel failed")
            delay_s = 0.05 if self.is_connected else min(0.5, delay_s * 2)
            self.is_connected = False
            await asyncio.sleep(delay_s)

    async def _listen(self) -> None:
        async with self._redis.pubsub() as pubsub:
            async with asyncio.timeout(self.SUBSCRIBE_TIMEOUT_S):  # connecting has no timeout of its own here
                await pubsub.subscribe(self._channel)
            heard_at = time.monotonic()
            while True:
                message = await pubsub.get_message(timeout=self.PING_EVERY_S)
                now = time.monotonic()
                if message is None:
                    if now - heard_at > self.SILENT_AFTER_S:
                        raise redis.ConnectionError("no answer to pings")
                    await pubsub.ping()
                    continue
                heard_at = now
                if message["type"] == "subscribe":
                    self.is_connected = True
                    await self._on_connected()
                elif message["type"] == "message":
                    self._dispatch(message["data"])

    def _dispatch(self, data: bytes) -> None:
        try:
            frames = decoder.decode(data)
        except msgspec.DecodeError:
            log.error("a message on the reply channel is not frames")
            return
        for frame in frames:
            try:
                self._on_frame(frame)
            except Exception:  # what one request makes of its frame must not cost the others theirs
                log.exception("frame not taken", extra={"request_id": frame.id})
