"""One task per request, as in Celery's tutorial: JSON, with Redis as broker and result backend."""

from __future__ import annotations

from functools import cache

import launch
from celery import Celery
from functions import Function

BROKER = f"redis+socket://{launch.SCRATCH / 'store.sock'}"
app = Celery("peer", broker=BROKER, backend=BROKER)
app.conf.update(result_expires=60, worker_hijack_root_logger=False)


@cache
def function() -> Function:
    """Loaded once, in the process that runs tasks."""
    return launch.load_function()


@app.task
def predict(item):
    return function()([item])[0]
