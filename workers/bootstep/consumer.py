"""The step that replaces Celery's consumer of messages, and our own remote commands.

The slots claim their jobs themselves. They belong to the pool and not to this step, because Celery restarts its consumer
whenever its connection breaks, and that must not stop a batch.
"""

from __future__ import annotations

import time
from typing import Any

from celery import bootsteps
from celery.worker import control
from celery.worker.control import control_command, inspect_command

from penstock.broker.store.ops import queue_name
from penstock.workers.bootstep import commands  # noqa: F401 - loaded for its commands
from penstock.workers.bootstep.pool import DevicePool
from penstock.workers.fleet.fleet import Fleet
from penstock.workers.telemetry.task_events import TASK_PREFIX


class ClaimStep(bootsteps.StartStopStep):
    """Takes no messages, since slots claim jobs from the store; connects the event feed to Celery's listeners."""

    requires = ("celery.worker.consumer.events:Events", "celery.worker.consumer.tasks:Tasks")

    def start(self, c: Any) -> None:
        if fleet := _fleet(c):
            fleet.follow(c)

    def stop(self, c: Any) -> None:
        """Nothing to do: the pool's `close` and `stop` end the work."""

    def info(self, c: Any) -> dict[str, Any]:
        """What `inspect stats` and Flower show as `total`. Celery's own counter stays at 0, since it runs no task."""
        fleet = _fleet(c)
        return {"total": {f"{TASK_PREFIX}{model}": count for model, count in fleet.ended().items() if count}} if fleet else {}


def _fleet(consumer: Any) -> Fleet | None:
    return consumer.pool.fleet if isinstance(consumer.pool, DevicePool) else None


@control_command()
def enable_events(state: Any) -> Any:
    """Tell worker(s) to send task-related events."""
    answer = control.enable_events(state)
    # The feed follows at once: the next beat, which asks every observer again, may be seconds away.
    if fleet := _fleet(state.consumer):
        fleet.follow(state.consumer)
    return answer


@inspect_command(name="active", alias="dump_active")
def active(state: Any, safe: bool = False, **_: Any) -> list[dict[str, Any]]:
    """List of jobs currently being executed."""
    fleet = _fleet(state.consumer)
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
            "delivery_info": {"routing_key": queue_name(batch.queue), "redelivered": job.attempts > 1},
            "worker_pid": slot.facts.info().pid,
        }
        for slot in slots
        for batch in slot.active_batches()
        for job in batch.jobs
    ]
