"""A Celery application whose broker and result backend is the Redis URL in the environment."""

import os

from celery import Celery

URL = os.environ["REDIS_URL"]
app = Celery("celery_app", broker=URL, backend=URL)
if prefix := os.environ.get("KEY_PREFIX"):
    app.conf.broker_transport_options = {"global_keyprefix": prefix}
    app.conf.result_backend_transport_options = {"global_keyprefix": prefix}


@app.task
def add(one, other):
    return one + other


@app.task
def total(numbers):
    return sum(numbers)
