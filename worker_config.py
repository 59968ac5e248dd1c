"""Celery settings of the worker, derived from Settings. `celery -A tasks worker|inspect|flower` reads them.

The reasons are measurements on Celery 5.7.0 and redis-py 8.1.0.
"""

import sys

from kombu.entity import Queue

from tasks.celery import celery_broker_url, redis_url
from tasks.contracts import EMBED_TASK, program_queue, queue_names
from tasks.settings import SettingsInvalid, load_settings
from tasks.worker_name import served_models_key, worker_name

try:
    settings = load_settings()
    broker_url = celery_broker_url(redis_url(settings))
except SettingsInvalid as exc:
    sys.exit(f"local-inference-server: settings are wrong:\n{exc}")

imports = ("tasks.chat", "tasks.embed", "tasks.worker")

# Threads answer control commands and Flower's pings in 1-2 ms while a task runs; solo answers when the task ends,
# and prefork kills a child that takes long to load and cannot be stopped as fast (1.7 s against 0.16 s).
worker_pool = "tasks.pool:SlotPool"
worker_concurrency = settings.parallel
worker_consumer = "tasks.consumer:Consumer"

# Nothing is reserved ahead, so an interactive task behind 1,000 batch tasks starts next. That a request runs at
# most once comes from its claim (tasks/claims.py), not from the acknowledgement.
task_acks_late = True
worker_prefetch_multiplier = 1
task_reject_on_worker_lost = False  # a requeue has no limit; the API retries once (api/jobs.py)
worker_cancel_long_running_tasks_on_connection_loss = False  # a broker blip must not end a generation

_names = queue_names(served_models_key(settings))
if settings.embedding_enabled:
    _names.append(program_queue(settings.embedding_model_alias))
task_routes = {EMBED_TASK: {"queue": _names[-1]}}  # for programs that import `tasks.celery.app`
task_queues = [Queue(name, routing_key=name) for name in _names]
task_default_queue = _names[0]

broker_transport_options = {
    "queue_order_strategy": "tasks.lanes:LaneOrder",
    "priority_steps": [0],
    "visibility_timeout": 86_400,  # longer than any task: a shorter one starts a long task again and again
    "unacked_key": f"lis:unacked:{worker_name(settings)}",  # its own, so that it can restore them at start
    "unacked_index_key": f"lis:unacked_index:{worker_name(settings)}",
    "unacked_mutex_key": f"lis:unacked_mutex:{worker_name(settings)}",
    # together they notice a peer behind a dead network in 21 s; none of them alone does
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "health_check_interval": 5,
    "socket_keepalive": True,
}
broker_connection_max_retries = None
broker_connection_retry_on_startup = True

task_serializer = "json"
accept_content = ["json"]
task_ignore_result = True  # but for a program's job (tasks/embed.py)
result_backend = celery_broker_url(settings.result_backend.get_secret_value() or redis_url(settings))
result_expires = 86_400
worker_send_task_events = False  # +0.9 ms per dispatch; Flower switches them on itself
task_send_sent_event = False
event_queue_expires = 60  # a monitor that was killed leaves nothing behind
event_queue_ttl = 30
worker_hijack_root_logger = False
worker_enable_remote_control = True
control_queue_expires = 60
