"""Names in Redis and in Celery: tasks, queues, keys, channels, ids, and how long keys live."""

import hashlib
import secrets
from enum import StrEnum
from typing import NamedTuple

CHAT_TASK = "tasks.chat"  #: one chat or text completion
EMBED_TASK = "tasks.embed"  #: one slice of an embeddings request

CLAIM_TTL_S = 86_400  #: longer than any request may run; a claim that outlives its request only costs memory
WORKER_TTL_S = 5  #: a worker whose heartbeat is older is lost
FAILED_TTL_S = 600  #: why a worker gave up stays known for so long; nobody waits for it, so nothing is lost later
HEARTBEAT_INTERVAL_S = 1.0
SHARES = 16  #: queues of a lane; so many API keys have a line of their own there, more of them share
CLAIM_WAITING = "waiting"  #: value of the claim key while nobody has taken the request


class Lane(StrEnum):
    """Queue class. Workers empty `interactive` before they look at `batch`."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


def claim_id(request_id: str, attempt: int) -> str:
    """What is claimed: one attempt of a request. A message of the lost attempt thus never takes the second one's."""
    return request_id if attempt == 1 else f"{request_id}~{attempt}"


def claim_key(claim: str) -> str:
    """`waiting`, then `worker#boot#delivery` of who runs it. Decides every race (tasks/claims.py)."""
    return f"lis:claim:{claim}"


def worker_key(worker: str) -> str:
    """The worker's heartbeat, a msgpack `WorkerState`. TTL: `WORKER_TTL_S`, of a failed one `FAILED_TTL_S`."""
    return f"lis:worker:{worker}"


WORKERS_KEY = "lis:workers"  #: sorted set of worker names by the unix time (s) of their last heartbeat


def lane_key(queue: str) -> str:
    """Sorted set of the ids that wait on a queue, by the unix time (ms, Redis's clock) their wait ends."""
    return f"lis:lane:{queue}"


def lane_work_key(queue: str) -> str:
    """Hash of the same ids: the unix time (us, Redis's clock) of submission, `:`, and the msgpack of a `Work`."""
    return f"lis:work:{queue}"


def reply_channel(api_id: str) -> str:
    """Pub/sub channel on which one API process gets all of its frames."""
    return f"lis:reply:{api_id}"


def control_channel(worker: str) -> str:
    """Pub/sub channel on which one worker's engine process gets `Control` messages."""
    return f"lis:control:{worker}"


def cancelled_key(request_id: str) -> str:
    """Exists when a running request was cancelled; for a worker that missed the control message."""
    return f"lis:cancelled:{request_id}"


CANCELLED_TTL_S = 600


def models_key(chat: str, embedding: str | None) -> str:
    """Short name of a set of served models. Workers that serve the same set share their queues."""
    return hashlib.sha256(f"{chat}\0{embedding or ''}".encode()).hexdigest()[:8]


class QueueParts(NamedTuple):
    """What a queue's name says, in the order that `queue_name` takes it."""

    lane: Lane
    models: str
    share: int


def queue_name(lane: Lane, models: str, share: int = 0) -> str:
    """Celery queue of one share of a lane, for the workers that serve `models` (a `models_key`)."""
    plain = f"lis.{models}.{lane.value}"
    return f"{plain}.{share % SHARES}" if share % SHARES else plain


def program_queue(embedding_model: str) -> str:
    """Celery queue of the jobs that programs send by themselves; it takes turns with the batch lane's."""
    return f"embed.{embedding_model}"


def is_program_queue(queue: str) -> bool:
    return queue.startswith("embed.")


def queue_parts(queue: str) -> QueueParts | None:
    """The reverse of `queue_name`; None for a queue that is none of ours."""
    prefix, *words = queue.split(".")
    if prefix != "lis" or len(words) not in (2, 3):
        return None
    try:
        return QueueParts(Lane(words[1]), words[0], int(words[2]) if len(words) == 3 else 0)
    except ValueError:
        return None


def queue_names(models: str) -> list[str]:
    """Every queue that a worker serving `models` empties, interactive first."""
    return [queue_name(lane, models, share) for lane in Lane for share in range(SHARES)]


def new_request_id(prefix: str) -> str:
    """`chatcmpl-…`, `cmpl-…`, `embd-…` or `resp_…`: Celery task id, log field, frame key and `x-request-id` in one."""
    return f"{prefix}{'_' if prefix == 'resp' else '-'}{secrets.token_hex(12)}"
