"""GET /v1/models and GET /health: what workers announce, as JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.contracts import ModelInfo, WorkerState, WorkerStatus

DOWNLOADING_RETRY_S = 30
LOADING_RETRY_S = 5


def model_json(model: ModelInfo) -> dict[str, Any]:
    meta: dict[str, Any] = {"kind": model.kind, "n_ctx": model.n_ctx}
    if model.width:
        meta["n_embd"] = model.width
    return {"id": model.id, "object": "model", "created": model.created, "owned_by": "local", "meta": meta}


def models_json(models: Sequence[ModelInfo]) -> dict[str, Any]:
    return {"object": "list", "data": [model_json(model) for model in models]}


class Health(NamedTuple):
    """`status`: ok, loading, draining, error, no_worker or queue_unavailable."""

    status: str
    message: str
    retry_after_s: int

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


def judge_health(is_reachable: bool, workers: Sequence[WorkerState]) -> Health:
    """Ok when a chat sent now would be accepted. Else the most hopeful of the workers' states."""
    if not is_reachable:
        return Health("queue_unavailable", "The queue (Redis) does not answer.", LOADING_RETRY_S)
    ready = [worker for worker in workers if worker.status is WorkerStatus.READY]
    if any(model.kind == "chat" for worker in ready for model in worker.models):
        return Health("ok", "", 0)
    by_status = {worker.status: worker for worker in workers}
    if worker := by_status.get(WorkerStatus.LOADING) or by_status.get(WorkerStatus.READY):
        return Health("loading", worker.message or "The model is loading.", LOADING_RETRY_S)
    if worker := by_status.get(WorkerStatus.DOWNLOADING):
        message = worker.message or "The model is downloading."
        return Health("loading", f"{message} ({worker.progress:.0%})", DOWNLOADING_RETRY_S)
    if WorkerStatus.DRAINING in by_status:
        return Health("draining", "The worker is stopping.", LOADING_RETRY_S)
    if worker := by_status.get(WorkerStatus.FAILED):
        return Health("error", worker.message or "The model could not be loaded.", DOWNLOADING_RETRY_S)
    return Health("no_worker", "No worker is online.", LOADING_RETRY_S)


def health_json(health: Health, workers: Sequence[WorkerState], models: Sequence[ModelInfo]) -> dict[str, Any]:
    return {
        "status": health.status,
        "message": health.message,
        "models": [model.id for model in models],
        "workers": [
            {
                "name": worker.name,
                "status": worker.status.value,
                "message": worker.message,
                "progress": round(worker.progress, 4),
                "models": [model.id for model in worker.models],
                "slots": worker.slots,
                "running": len(worker.running),
            }
            for worker in workers
        ],
    }
