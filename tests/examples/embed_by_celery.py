import os

import redis
from celery import Celery

REDIS = os.environ.get("REDIS_URL", "redis://:secret@REDIS:6379/0")  # the workers' LIS_REDIS_URL
MODEL = "all-minilm-l6-v2"  # their LIS_EMBEDDING_MODEL_ALIAS

app = Celery(broker=REDIS, backend=REDIS)
texts = ["cat", "dog", "car engine"]

# the vectors as the task's result
job = app.send_task("tasks.embed", kwargs={"texts": texts, "model": MODEL}, queue=f"embed.{MODEL}")
result = job.get(timeout=600)
print(job.id, len(result["vectors"]), "vectors of", result["width"], "numbers")

# or pushed to a list in Redis
keywords = {"texts": texts, "model": MODEL, "encoding_format": "base64", "callback_key": "my-app:vectors"}
app.send_task("tasks.embed", kwargs=keywords, queue=f"embed.{MODEL}", ignore_result=True)
answer = redis.Redis.from_url(REDIS).blpop(["my-app:vectors"], timeout=600)
print(answer)
