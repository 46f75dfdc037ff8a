"""A Celery application whose broker and result backend is the Redis URL in the environment."""

import os

from celery import Celery

URL = os.environ["REDIS_URL"]
app = Celery("celery_app", broker=URL, backend=URL)


@app.task
def add(one, other):
    return one + other


@app.task
def total(numbers):
    return sum(numbers)
