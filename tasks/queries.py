"""Questions about tokens, answered in the engine process beside the queue, on threads of their own."""

import logging
import queue
import threading
from typing import Any

import redis

from tasks.contracts import ErrorCode, GenerateRequest, Query, Replied, reply_channel
from tasks.engines.base import ChatEngine, EngineError, InvalidRequest
from tasks.frames import encoder

log = logging.getLogger(__name__)

THREADS = 2  #: one long text must not hold up the next question
MAX_WAITING = 100  #: beyond it a question is dropped; its asker gives up by itself
FAILED = "The engine failed on this request. The server's log says why."


class QueryDesk:
    """Takes questions from the control channel's thread, and publishes the answers."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._waiting: queue.Queue[tuple[str, Query]] = queue.Queue(MAX_WAITING)

    def start(self, engine: ChatEngine) -> None:
        for number in range(THREADS):
            threading.Thread(target=self._run, args=(engine,), name=f"queries-{number}", daemon=True).start()

    def put(self, query_id: str, query: Query) -> None:
        """Never blocks."""
        try:
            self._waiting.put_nowait((query_id, query))
        except queue.Full:
            log.warning("too many questions about tokens wait; one is dropped", extra={"request_id": query_id})

    def _run(self, engine: ChatEngine) -> None:
        while True:
            query_id, query = self._waiting.get()
            replied = answer(engine, query_id, query)
            try:
                self._redis.publish(reply_channel(query.reply_to), encoder.encode([replied]))
            except (redis.RedisError, OSError) as exc:
                log.warning("an answer about tokens is lost: %s", type(exc).__name__, extra={"request_id": query_id})


def answer(engine: ChatEngine, query_id: str, query: Query) -> Replied:
    """Never raises."""
    try:
        return Replied(id=query_id, attempt=1, seq=-1, values=_values(engine, query))
    except EngineError as exc:
        return Replied(query_id, 1, -1, {}, exc.message, exc.param, exc.code)
    except Exception:
        log.exception("a question about tokens failed", extra={"request_id": query_id})
        return Replied(query_id, 1, -1, {}, FAILED, None, ErrorCode.ENGINE_ERROR)


def _values(engine: ChatEngine, query: Query) -> dict[str, Any]:
    match query.op:
        case "tokenize":
            tokens = engine.tokenize_text(query.text, query.add_special, query.parse_special)
            return {"tokens": tokens, **({"pieces": engine.token_pieces(tokens)} if query.with_pieces else {})}
        case "detokenize":
            return {"text": b"".join(engine.token_pieces(query.tokens)).decode("utf-8", "replace")}
        case "apply_template":
            return {"prompt": engine.render_prompt(_request(query))}
        case "count":
            return {"tokens": engine.count_tokens(_request(query))}
    raise InvalidRequest("This worker does not know the question; it may be of an older version.")


def _request(query: Query) -> GenerateRequest:
    if query.request is None:
        raise InvalidRequest("The question has no request.")
    return query.request
