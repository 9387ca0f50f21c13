"""Celery's remote commands as they are for our jobs: done, or refused in one sentence that says what to do instead."""

# D82: docs/design/workers-and-devices.md

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import control_command

from penstock.broker.contract import CancelStatus
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.job import JobId, JobState

Answer = dict[str, str]
_MODELS = "a worker serves the models of its settings"
REFUSED = {
    "add_consumer": f"{_MODELS}; start a worker with the model in its penstock.toml, or `penstock models load` a version",
    "cancel_consumer": f"{_MODELS}; stop the worker with `celery control shutdown`, or a version with `penstock models unload`",
    "rate_limit": "rates are limited where jobs come in: rate_per_s of a key, or of [gateway]",
    "time_limit": "how long a run may take is max_run_s in [models.NAME]",
    "autoscale": "slots do not follow the load; use pool_grow and pool_shrink, or more workers",
    "pool_restart": "a model is loaded anew with `penstock models load`, or by a restart of the worker",
    "revoke_by_stamped_headers": "jobs have no stamps; revoke tasks by their ids, or cancel jobs by a tag over HTTP",
}


def _refuse(name: str, why: str) -> None:
    def refused(state: Any, *_: Any, **__: Any) -> Answer:
        return {"error": why}

    control_command(name=name, help=f"Refused: {why}", variadic="arguments")(refused)


for _name, _why in REFUSED.items():
    _refuse(_name, _why)


@control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def revoke(state: Any, task_id: Any, terminate: bool = False, **_: Any) -> Answer:
    """Revoke tasks by id: those that wait end now; with terminate, the results of those that run are dropped."""
    return _revoked(state, task_id, terminate=terminate)


def _revoked(state: Any, task_id: Any, *, terminate: bool) -> Answer:
    tasks = [task_id] if isinstance(task_id, str) else [one for one in task_id or () if isinstance(one, str)]
    # For messages that nobody has read yet: see celery_clients.py.
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
        job = next((found for found in jobs if found), None)
        done.setdefault(_revoke(store, job, terminate=terminate) if job else "unknown", []).append(task)
    return done


def _revoke(store: RedisStore, job: JobId, *, terminate: bool) -> str:
    found = store.read(job)
    if found is not None and found.state is JobState.LEASED and not terminate:
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


# Two orders about the same slots would undo each other at every beat.
_SCALED = "versions that were scaled with `penstock models scale`, or whose slots follow their work, keep their number"


@control_command(args=[("n", int)], signature="[N=1]")
def pool_grow(state: Any, n: int = 1, **_: Any) -> Answer:
    """Add slots, each to the model with the fewest."""
    return _resized(state.consumer.pool.grow, n, "added", f"there is no place for another slot on this machine; {_SCALED}")


@control_command(args=[("n", int)], signature="[N=1]")
def pool_shrink(state: Any, n: int = 1, **_: Any) -> Answer:
    """Remove slots, each from the model with the most; every model keeps one."""
    return _resized(state.consumer.pool.shrink, n, "removed", f"every model keeps a slot; {_SCALED}")


def _resized(resize: Callable[[int], int], wanted: object, what: str, why: str) -> Answer:
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        return {"error": f"name a number of slots above 0, not {str(wanted)[:40]!r}"}
    count = resize(wanted)
    said = f"{count} of {wanted} slots {what}"
    return {"ok": said} if count == wanted else {"error": f"{said}: {why}"}
