"""worker_config.py, read by a Python of its own, as `celery -A tasks worker` does."""

import json
import os
import subprocess
import sys
from typing import Any

from tasks.contracts import SHARES, Lane, models_key, program_queue, queue_name

SHOW = """
import json, worker_config as c
print(json.dumps({
    "queues": [queue.name for queue in c.task_queues],
    "default": c.task_default_queue,
    "options": c.broker_transport_options,
    "url": c.broker_url,
    "concurrency": c.worker_concurrency,
    "late": c.task_acks_late,
    "prefetch": c.worker_prefetch_multiplier,
}))
"""


def _run(**variables: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LIS_")}
    env = inherited | {"LIS_REDIS_URL": "redis://h:6379/3", "LIS_WORKER_NAME": "w1"} | variables
    return subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=False)


def _config(**variables: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(_run(**variables).stdout)
    return config


def test_interactive_comes_strictly_before_batch() -> None:
    config = _config(LIS_MODEL_ALIAS="chat", LIS_EMBEDDING_MODEL_ALIAS="embed")
    models = models_key("chat", "embed")
    queues = [queue_name(lane, models, share) for lane in (Lane.INTERACTIVE, Lane.BATCH) for share in range(SHARES)]
    assert config["queues"] == [*queues, program_queue("embed")]
    assert config["default"] == config["queues"][0]
    assert config["options"]["queue_order_strategy"] == "tasks.lanes:LaneOrder"
    assert config["options"]["priority_steps"] == [0]


def test_nothing_is_taken_before_a_slot_is_free() -> None:
    config = _config(LIS_PARALLEL="3")
    assert (config["late"], config["prefetch"], config["concurrency"]) == (True, 1, 3)


def test_unacknowledged_messages_are_each_workers_own() -> None:
    """So that it can take them back at its start without waiting for the visibility timeout, a day."""
    one, other = _config(), _config(LIS_WORKER_NAME="w2")
    for key in ("unacked_key", "unacked_index_key", "unacked_mutex_key"):
        assert one["options"][key] != other["options"][key]


def test_workers_of_other_models_have_other_queues() -> None:
    assert _config(LIS_MODEL_ALIAS="a")["queues"] != _config(LIS_MODEL_ALIAS="b")["queues"]


def test_a_unix_socket_is_written_the_way_kombu_reads_it() -> None:
    assert _config(LIS_REDIS_URL="unix://:p%40ss@/run/v.sock?db=2")["url"] == (
        "redis+socket://:p%40ss@/run/v.sock?virtual_host=2"
    )


def test_bad_settings_end_it_with_all_of_them_named() -> None:
    ended = _run(LIS_N_CTX="0", LIS_PARALLEL="none")
    assert ended.returncode != 0
    assert "LIS_N_CTX" in ended.stderr
    assert "LIS_PARALLEL" in ended.stderr
    assert "Traceback" not in ended.stderr
