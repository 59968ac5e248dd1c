"""A worker's life inside Celery: models first, tasks then; drain at the end.

`celery -A tasks worker` imports this module (worker_config.imports), which hooks a bootstep in before the consumer.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from celery import bootsteps, signals
from celery.exceptions import Reject
from celery.worker import state as celery_state

from tasks.celery import app, redis_url
from tasks.claims import Claims, Owner
from tasks.contracts import (
    SHARES,
    EmbedRequest,
    ErrorCode,
    Failed,
    GenerateRequest,
    Lane,
    RunningWork,
    WorkerState,
    WorkerStatus,
    claim_id,
    queue_name,
    work_of,
)
from tasks.ended import LOST, Ended
from tasks.engine_host import EngineFailed, EngineHost
from tasks.engines.base import Cancelled, ModelLoadError
from tasks.frames import publish_failure, sync_redis
from tasks.heartbeat import Heartbeat
from tasks.lanes import TURNS
from tasks.listeners import ReplyListeners
from tasks.log import configure_logging, without_paths
from tasks.model_store import resolve_models
from tasks.program_job import JobFailed, parse_job
from tasks.program_run import ProgramRun, refuse
from tasks.program_slices import Slices
from tasks.quick_exit import skip_last_collection
from tasks.rates import RateMeter
from tasks.retry import until_redis_answers
from tasks.setting_types import ENV_FILE
from tasks.settings import Settings, load_settings
from tasks.settings_problems import unknown_variables
from tasks.worker_name import served_models_key, worker_name

log = logging.getLogger(__name__)

STOP_GRACE_S = 2.0  #: for a request that was told to end, after LIS_DRAIN_TIMEOUT
PROGRAM_SLICE_S = 1.0  #: what a slice of a program's job should take: others wait for so long at most
SMALLEST_SLICE_TOKENS = 256  #: also before anything was measured
EXIT_CANNOT_START = 78  #: EX_CONFIG of sysexits.h: starting again would not help


class WorkerRuntime:
    """What one worker process holds: the engine host, the heartbeat, the claims."""

    def __init__(self, settings: Settings, slots: Callable[[], int]) -> None:
        """`slots` tells how many tasks may run at a time: a monitor can lower it (tasks/pool.py)."""
        self.settings = settings
        self._slots = slots
        self.name = worker_name(settings)
        self.boot_id = secrets.token_hex(6)
        self._url = redis_url(settings)
        self._redis = sync_redis(self._url)
        self._claims = Claims(sync_redis(self._url), Owner(self.name, self.boot_id))
        self._listeners = ReplyListeners(sync_redis(self._url))
        self._slices = Slices(sync_redis(self._url), Owner(self.name, self.boot_id))
        self._models = served_models_key(settings)
        self._status = WorkerStatus.LOADING
        self._message = ""
        self._progress = 0.0
        self._work: dict[str, RunningWork] = {}  #: by request id
        self._meter = RateMeter()
        self._draining = False
        self._host: EngineHost | None = None
        self._heartbeat = Heartbeat(sync_redis(self._url), self._state)

    def start(self) -> None:
        """Find or download the models and load them.

        Raises ModelLoadError or EngineFailed; WorkerShutdown on SIGTERM.
        """
        self._heartbeat.start()
        try:
            resolved = resolve_models(self.settings, self._downloading, lambda: celery_state.should_stop is not None)
            self._host = EngineHost(resolved, self.name, self.boot_id, self._url, self._set_state)
            self._host.start()
            self._host.wait_ready(celery_state.maybe_shutdown)
        except (ModelLoadError, EngineFailed) as exc:
            self._set_state(WorkerStatus.FAILED, str(exc))
            raise
        except Cancelled:  # SIGTERM during a download
            celery_state.maybe_shutdown()

    def stop(self) -> None:
        """End the engine, once nothing runs any more: Celery stops what it started last, and its pool started first."""
        if self._host is not None:
            self._host.wait_idle(self.settings.drain_timeout_s + STOP_GRACE_S)
            self._host.stop()
        self._heartbeat.stop()

    def drain(self) -> None:
        """Take nothing new; what still runs after LIS_DRAIN_TIMEOUT ends with an error frame."""
        if self._status is WorkerStatus.FAILED or self._draining:
            return  # why it failed is what clients are to read
        self._draining = True
        self._set_state(WorkerStatus.DRAINING, "shutting down")
        if self._host is not None:
            message = "The worker was shut down before the answer was whole."
            timer = threading.Timer(
                self.settings.drain_timeout_s, self._host.fail_all, (ErrorCode.WORKER_SHUTDOWN, message)
            )
            timer.daemon = True
            timer.start()

    def run(self, kind: str, request: GenerateRequest | EmbedRequest, delivered_by: str) -> None:
        """Claim the request and have the engine run it; block until it has ended. Do nothing when nobody waits.

        `delivered_by` is the queue that the message came from: of a batch request that had waited for too long it is
        one of the interactive lane, while the request is counted where it has waited.
        """
        host = self._host
        assert host is not None
        host.wait_ready(self._give_back_when_draining)
        self._give_back_when_draining()
        began = time.monotonic()
        queue = queue_name(request.lane, self._models, request.share)
        claim, token = claim_id(request.id, request.attempt), self._claims.token()
        if not until_redis_answers(lambda: self._listeners.has_one(request.reply_to), "look for the client's API"):
            log.warning("request dropped: its API process is gone", extra={"request_id": request.id})
            TURNS.give_back(delivered_by)
            return
        taken_ms = until_redis_answers(lambda: self._claims.claim(claim, queue, token), "claim")
        if not taken_ms:
            log.info("request dropped: nobody waits for it", extra={"request_id": request.id})
            TURNS.give_back(delivered_by)
            return
        work = work_of(request)
        self._work[request.id] = RunningWork(request.id, request.lane.value, taken_ms, work)
        self._heartbeat.now()
        ended = host.run(kind, request)
        self._work.pop(request.id, None)
        if ended.outcome == LOST:
            lost = Failed(
                request.id, request.attempt, -1, ErrorCode.ENGINE_LOST, "The engine that ran this request died."
            )
            until_redis_answers(lambda: publish_failure(self._redis, request.reply_to, lost), "failure frame")
        until_redis_answers(lambda: self._claims.release(claim, token), "release")
        self._meter.add(work, ended, time.monotonic() - began)
        self._heartbeat.now()

    def run_job(self, task: Any, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Run a slice of a program's job (ProgramRun.run)."""
        try:
            job = parse_job(arguments)
        except JobFailed as exc:
            refuse(self._slices, task.request.id, arguments, str(exc))
            raise
        assert self._host is not None
        self._host.wait_ready(self._give_back_when_draining)
        self._give_back_when_draining()
        served = self.settings.embedding_model_alias if self.settings.embedding_enabled else ""
        run = ProgramRun(task, job, self._slices, self._claims.token(), served)
        measured = self._meter.rates().embedding_tokens_per_s * PROGRAM_SLICE_S
        most = max(SMALLEST_SLICE_TOKENS, int(measured))
        return run.run(self._embed_for_program, min(most, self.settings.batch_slice_tokens))

    def _embed_for_program(self, request: EmbedRequest) -> Ended:
        host = self._host
        assert host is not None
        host.wait_ready(self._give_back_when_draining)
        began, work = time.monotonic(), work_of(request)
        self._work[request.id] = RunningWork(request.id, request.lane.value, int(time.time() * 1000), work)
        self._heartbeat.now()
        ended = host.run("embed", request)
        self._work.pop(request.id, None)
        self._meter.add(work, ended, time.monotonic() - began)
        self._heartbeat.now()
        return ended

    def _give_back_when_draining(self) -> None:
        """Raises Reject: the message goes back to the head of its queue, for the next worker."""
        if self._draining:
            raise Reject("the worker stops", requeue=True)

    def _downloading(self, message: str, fraction: float) -> None:
        if int(fraction * 10) > int(self._progress * 10):
            log.info("%s", message)
        self._progress = fraction
        self._set_state(WorkerStatus.DOWNLOADING, message)

    def _set_state(self, status: WorkerStatus, message: str) -> None:
        if self._draining and status is not WorkerStatus.FAILED:
            status, message = WorkerStatus.DRAINING, "shutting down"
        if status is not self._status or (message != self._message and status is not WorkerStatus.DOWNLOADING):
            log.info("worker %s", status.value, extra={"detail": message} if message else {})
        self._status, self._message = status, without_paths(message)
        self._heartbeat.now()

    def _state(self) -> WorkerState:
        host = self._host
        return WorkerState(
            name=self.name,
            boot_id=self.boot_id,
            status=self._status,
            message=self._message,
            progress=self._progress,
            models=host.models if host is not None else [],
            queues={lane.value: queue_name(lane, self._models) for lane in Lane},
            shares=SHARES,
            slots=self._slots(),
            running=host.running_ids() if host is not None else [],
            embedding_batch_size=self.settings.embedding_batch_size,
            work=list(self._work.values()),
            rates=self._meter.rates(),
            max_tokens=self.settings.max_model_length,
            beat_ms=int(time.time() * 1000),
        )


_runtime: WorkerRuntime | None = None


def runtime() -> WorkerRuntime:
    """This worker process's runtime. Only inside a running worker."""
    assert _runtime is not None, "tasks run inside `celery -A tasks worker` only"
    return _runtime


class ModelsStep(bootsteps.StartStopStep):
    """Loads the models before the consumer takes the first task, and frees them after the last."""

    requires: ClassVar[set[str]] = {"celery.worker.components:Pool"}

    def start(self, parent: Any) -> None:
        global _runtime
        skip_last_collection()
        for line in unknown_variables(Settings, ENV_FILE):
            log.warning("%s", line)
        _runtime = WorkerRuntime(load_settings(), lambda: parent.pool.num_processes)
        try:
            _runtime.start()
        except (ModelLoadError, EngineFailed) as exc:
            log.error("cannot start: %s", exc)
            _runtime.stop()  # Celery stops nothing before all has started; the last heartbeat must tell why
            raise SystemExit(EXIT_CANNOT_START) from None

    def close(self, parent: Any) -> None:
        """The worker ends, and nothing has stopped yet. A remote `shutdown`, as Flower's, sends no signal before."""
        if _runtime is not None:
            _runtime.drain()

    def stop(self, parent: Any) -> None:
        if _runtime is not None:
            _runtime.stop()

    terminate = stop


class RestoreStep(bootsteps.StartStopStep):
    """Puts back to the head of its queue what this worker had taken and not acknowledged: when it was killed, or when
    it lost the broker, after which nothing can be acknowledged that came before.

    Celery would do so after the visibility timeout, a day. The keys are this worker's own (worker_config). A message
    whose request runs here, or has ended, comes again and finds its claim taken.
    """

    requires: ClassVar[set[str]] = {"celery.worker.consumer.tasks:Tasks"}

    def start(self, parent: Any) -> None:
        channel = parent.task_consumer.channel
        with channel.conn_or_acquire() as client:
            tags = client.hkeys(channel.unacked_key)
        for tag in tags:
            # the head of a queue is its right end: kombu (5.7) publishes with LPUSH and takes with BRPOP
            channel.qos.restore_by_tag(tag if isinstance(tag, str) else tag.decode(), leftmost=False)
        if tags:
            log.info("unacknowledged tasks put back", extra={"tasks": len(tags)})


app.steps["worker"].add(ModelsStep)
app.steps["consumer"].add(RestoreStep)


@signals.setup_logging.connect
def _setup_logging(loglevel: int | None = None, **_: Any) -> None:
    configure_logging(logging.getLevelName(loglevel) if loglevel else load_settings().log_level, "worker")


@signals.worker_shutting_down.connect
def _shutting_down(**_: Any) -> None:
    if _runtime is not None:
        _runtime.drain()
