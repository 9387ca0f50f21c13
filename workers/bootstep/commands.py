"""Celery's remote commands for our slots: carried out, or refused in one sentence that says what to do instead."""

# D82: docs/design/workers-and-devices.md

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.control import control_command

Answer = dict[str, str]
_MODELS = "a worker serves the models of its settings"
REFUSED = {
    "add_consumer": f"{_MODELS}; start a worker with the model in its penstock.toml, or `penstock models load` a version",
    "cancel_consumer": f"{_MODELS}; stop the worker with `celery control shutdown`, or a version with `penstock models unload`",
    "rate_limit": "rates are limited where jobs come in: rate_per_s of a key, or of [gateway]",
    "time_limit": "how long a run may take is max_run_s in [models.NAME]",
    "autoscale": "a model's settings scale its slots, and Celery does not; or use pool_grow and pool_shrink",
    "pool_restart": "to reload a model, run `penstock models load` or restart the worker",
    "revoke_by_stamped_headers": "jobs have no stamps; revoke tasks by their ids, or cancel jobs by a tag over HTTP",
}


def _refuse(name: str, why: str) -> None:
    def refused(state: Any, *_: Any, **__: Any) -> Answer:
        return {"error": why}

    control_command(name=name, help=f"Refused: {why}", variadic="arguments")(refused)


for _name, _why in REFUSED.items():
    _refuse(_name, _why)


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
