"""The worker's Celery app with a short visibility timeout: `celery -A tests.short_visibility worker`.

It is a fixed setting of the product, far above any task's time; with a short one a redelivery happens while one looks.
"""

import os

from tasks.celery import app

app.conf.broker_transport_options = {
    **app.conf.broker_transport_options,
    "visibility_timeout": float(os.environ["LIS_TEST_VISIBILITY_TIMEOUT"]),
}
