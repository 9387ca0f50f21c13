"""The bootstep between Celery's consumer and our fleet, and the remote-control command that shows what runs.

The fleet belongs to the pool, not to this step: Celery restarts its consumer whenever its own connection breaks, and that must
not stop a batch.
"""

from __future__ import annotations

import time
from typing import Any

from celery import bootsteps
from celery.worker.control import inspect_command

from penstock.workers.bootstep.pool import DevicePool
from penstock.workers.telemetry.task_events import TASK_PREFIX


class ClaimStep(bootsteps.StartStopStep):
    """Tells the events feed whether anyone has asked for them."""

    requires = ("celery.worker.consumer.events:Events", "celery.worker.consumer.tasks:Tasks")

    def start(self, c: Any) -> None:
        if isinstance(c.pool, DevicePool) and c.pool.fleet is not None:
            # Asked at call time: `control enable_events` changes it while the worker runs.
            c.pool.fleet.events.follow(lambda: tells_of_tasks(c.event_dispatcher))

    def stop(self, c: Any) -> None:
        """Nothing: the pool's `close` and `stop` say when work ends."""


def tells_of_tasks(dispatcher: Any) -> bool:
    """Whether Celery's own dispatcher would send events of tasks. One that is enabled may be for heartbeats only."""
    return bool(dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))


@inspect_command(name="active", alias="dump_active")
def active(state: Any, safe: bool = False, **_: Any) -> list[dict[str, Any]]:
    """List of jobs currently being executed."""
    fleet = getattr(state.consumer.pool, "fleet", None)
    slots = fleet.slots if fleet is not None else []
    # Batches carry monotonic moments; readers of this want Unix ones.
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
