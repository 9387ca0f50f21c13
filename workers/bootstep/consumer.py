"""Where Celery's consumer would start to take messages: the step in its place, and the remote command that shows what runs.

The slots claim their jobs themselves. They belong to the pool and not to this step, because Celery restarts its consumer
whenever its connection breaks, and that must not stop a batch.
"""

from __future__ import annotations

import time
from typing import Any

from celery import bootsteps
from celery.worker.control import inspect_command

from penstock.workers.bootstep.pool import DevicePool
from penstock.workers.telemetry.task_events import TASK_PREFIX


class ClaimStep(bootsteps.StartStopStep):
    """Takes no messages, since slots claim jobs from the store; connects the event feed to Celery's listeners."""

    requires = ("celery.worker.consumer.events:Events", "celery.worker.consumer.tasks:Tasks")

    def start(self, c: Any) -> None:
        if isinstance(c.pool, DevicePool) and c.pool.fleet is not None:
            c.pool.fleet.events.follow(c)

    def stop(self, c: Any) -> None:
        """Nothing to do: the pool's `close` and `stop` end the work."""


@inspect_command(name="active", alias="dump_active")
def active(state: Any, safe: bool = False, **_: Any) -> list[dict[str, Any]]:
    """List of jobs currently being executed."""
    fleet = getattr(state.consumer.pool, "fleet", None)
    slots = fleet.slots if fleet is not None else []
    # Batches carry monotonic moments, and Celery's readers expect Unix time.
    epoch = time.time() - time.monotonic()
    return [
        {
            "id": str(job.id),
            "name": f"{TASK_PREFIX}{slot.spec.name}",
            "args": [],
            "kwargs": {},
            "type": f"{TASK_PREFIX}{slot.spec.name}",
            "hostname": state.hostname,
            "time_start": epoch + batch.claimed_at,
            "acknowledged": False,
            "delivery_info": {"routing_key": f"penstock.{{{slot.spec.name}}}", "redelivered": job.attempts > 1},
            "worker_pid": slot.info().pid,
        }
        for slot in slots
        for batch in slot.active_batches()
        for job in batch.jobs
    ]
