"""The peer: a plain Celery application on the same store, set up as carefully as Celery's documentation allows.

The settings are `acks_late`, `reject_on_worker_lost`, a prefetch of one, and a visibility timeout of 5 s (the default is an
hour).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from tests.faults.echo import Log, digest

app = Celery("plain", broker=os.environ["PLAIN_BROKER"], backend=os.environ["PLAIN_BACKEND"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 5},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    result_expires=86_400,
)


@app.task(name="plain.echo")  # type: ignore[untyped-decorator]
def echo(order: dict[str, Any]) -> dict[str, Any]:
    log = Log(Path(os.environ["PLAIN_LOG"]))
    log.note("begin", order["nonce"])
    time.sleep(order.get("seconds", 0.0))
    log.note("end", order["nonce"])
    log.close()
    return {"digest": digest(order)}
