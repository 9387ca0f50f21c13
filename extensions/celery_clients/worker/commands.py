"""Celery's remote commands for tasks: a client revokes a task by its id, and the task's job ends."""

# D82: docs/design/workers-and-devices.md

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import control_command

from penstock.broker.contract import CancelStatus
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.job import JobId, JobState

Answer = dict[str, str]


@control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def revoke(state: Any, task_id: Any, terminate: bool = False, **_: Any) -> Answer:
    """Revoke tasks by id: those that wait end now; with terminate, the results of those that run are dropped."""
    return _revoked(state, task_id, terminate=terminate)


def _revoked(state: Any, task_id: Any, *, terminate: bool) -> Answer:
    tasks = [task_id] if isinstance(task_id, str) else [one for one in task_id or () if isinstance(one, str)]
    # For messages that no worker has read yet: see clients.py.
    worker_state.revoked.update(tasks)
    store = RedisStore(state.app.settings.job_store_url, name="penstock-revoke")
    try:
        return {"ok": _told(_revoke_all(store, tasks, state.app.settings.models, terminate=terminate))}
    except StoreUnavailable as error:
        return {"error": error.message}
    finally:
        store.close()


@control_command(variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]")
def terminate(state: Any, signal: str, task_id: Any, **_: Any) -> Answer:
    """Revoke tasks, also those that run. No signal is sent: a job shares its process with others."""
    return _revoked(state, task_id, terminate=True)


def _revoke_all(store: RedisStore, tasks: Iterable[str], own: Iterable[str], *, terminate: bool) -> dict[str, list[str]]:
    models = sorted({*own, *(info.name for info in store.models())})
    done: dict[str, list[str]] = {}
    for task in tasks:
        jobs = (store.send(celery_ops.job_of_task(model, task)) for model in models)
        job = next((match for match in jobs if match), None)
        done.setdefault(_revoke(store, job, terminate=terminate) if job else "unknown", []).append(task)
    return done


def _revoke(store: RedisStore, job: JobId, *, terminate: bool) -> str:
    record = store.read(job)
    if record is not None and record.state is JobState.LEASED and not terminate:
        return "running"
    return {CancelStatus.CANCELLED: "revoked", CancelStatus.REQUESTED: "stopping"}.get(store.cancel(job), "ended")


_SAID = {
    "revoked": "revoked",
    "stopping": "running, and their results will be dropped",
    "running": "running, and left so without terminate",
    "ended": "ended before",
    "unknown": "without a job, and revoked if their messages come",
}


def _told(done: dict[str, list[str]]) -> str:
    return "; ".join(f"{_SAID[what]}: {', '.join(done[what])}" for what in _SAID if what in done) or "no task was named"
