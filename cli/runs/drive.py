"""Drives a run in this process: the driver in a thread, the processes and the display kept up by the main one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from penstock.broker.run_contract import Runs
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.cli.runs.display import Shown
from penstock.cli.runs.environment import RunEnvironment
from penstock.cli.serve.supervisor import StopSignals
from penstock.errors import StoreUnavailable
from penstock.runs.execution import DriveResult, Execution, ResumeOptions, RunServices
from penstock.runs.lease import LEASE_S, OwnedRun
from penstock.runs.ownership import HeldElsewhere, take
from penstock.runs.progress import RunProgress

_TURN_S = 0.1
_TAKE_PAUSE_S = 0.5
# A model that was just started on this machine may take long to load; one that others serve is there or not.
_PATIENCE_S = 300.0


@dataclass(slots=True)
class _Latest:
    look: RunProgress | None = None


def driven(
    ground: RunEnvironment,
    made: Callable[[Runs], str],
    *,
    stop: StopSignals,
    shown: Shown,
    said: Callable[[OwnedRun], None],
    allowed: ResumeOptions | None = None,
) -> tuple[OwnedRun, DriveResult]:
    """Take the run that `made` names and drive it until it ends, or until told to stop; then it can be resumed."""
    with closing(RedisStore(ground.redis_url, name="penstock-run-command")) as store:
        runs = RunStore(store)
        held = _taken(runs, made(runs), ground, stop)
    said(held)
    latest = _Latest()
    patience_s = _PATIENCE_S if held.run.spec.model in ground.brought else 0.0
    shop = RunServices(ground.redis_url, ground.blobs, ground.state_dir, patience_s=patience_s)
    execution = Execution(held, shop, told=lambda look: setattr(latest, "look", look), allowed=allowed)
    return held, _watched(execution, ground, latest, stop=stop, shown=shown)


def _taken(runs: Runs, run_id: str, ground: RunEnvironment, stop: StopSignals) -> OwnedRun:
    """Waits for a driver of another machine to be forgotten, one lease at most."""
    give_up_at = time.monotonic() + LEASE_S + 1.0
    while True:
        try:
            return take(runs, run_id)
        except HeldElsewhere as held:
            if time.monotonic() > give_up_at or stop.count:
                raise held
        ground.turn()
        stop.wait(_TAKE_PAUSE_S)


def _watched(execution: Execution, ground: RunEnvironment, latest: _Latest, *, stop: StopSignals, shown: Shown) -> DriveResult:
    ended: list[DriveResult | BaseException] = []

    def work() -> None:
        try:
            ended.append(execution.execute())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            ended.append(error)

    thread = threading.Thread(target=work, name="run-driver", daemon=True)
    thread.start()
    while thread.is_alive():
        ground.turn()
        if stop.count:
            execution.interrupt()
        if stop.count > 1:
            raise StoreUnavailable("told twice to stop: left at the last commit")
        if latest.look is not None:
            shown(latest.look)
        thread.join(_TURN_S)
    [found] = ended
    if isinstance(found, BaseException):
        raise found
    return found
