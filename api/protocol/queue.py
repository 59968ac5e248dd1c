"""GET /v1/queue: what waits, what runs, and the estimates, as JSON."""

from typing import Any

from api.estimate import Estimate, Speed
from api.job_types import GroupReport, QueueReport, RequestReport


def queue_json(report: QueueReport) -> dict[str, Any]:
    return {
        "object": "queue",
        "groups": [_group_json(group) for group in report.groups],
        "requests": [_request_json(request) for request in report.requests],
        "estimate_error": {
            "median": None if report.median_error is None else round(report.median_error, 3),
            "samples": report.errors,
        },
    }


def _group_json(group: GroupReport) -> dict[str, Any]:
    lanes = {
        name: {"waiting": lane.waiting, "running": lane.running, "estimate": _estimate_json(lane.estimate)}
        for name, lane in group.lanes.items()
    }
    return {
        "models": group.models,
        "workers": group.workers,
        "slots": group.slots,
        "lanes": lanes,
        "rates": _rates_json(group.speed),
    }


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    """Of a request that came now."""
    return {
        "wait_s": round(estimate.wait_s, 3),
        "position": estimate.position,
        "is_measured": estimate.is_measured,
    }


def _rates_json(speed: Speed) -> dict[str, Any]:
    """null: not measured yet."""
    chat, embedding = speed.is_measured("chat"), speed.is_measured("embedding")
    values = {
        "prefill_tokens_per_s": speed.prefill if chat else None,
        "decode_tokens_per_s": speed.decode if chat else None,
        "overhead_s": speed.overhead_s if chat else None,
        "chars_per_token": speed.chars_per_token if chat else None,
        "completion_tokens": speed.expected_tokens() if chat else None,
        "embedding_tokens_per_s": speed.embedding_tokens_per_s if embedding else None,
    }
    return {name: None if value is None else round(value, 3) for name, value in values.items()}


def _request_json(request: RequestReport) -> dict[str, Any]:
    is_waiting = request.position > 0
    return {
        "id": request.id,
        "state": "waiting" if is_waiting else "running",
        "lane": request.lane,
        "position": request.position,
        "starts_at": round(request.starts_at, 3),
        "wait_s": round(request.wait_s, 3),
        "is_measured": request.is_measured,
    }
