"""Drives a run in this process: the driver in a thread; the main thread keeps the processes and the display up to date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from penstock.broker.run_contract import Runs
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.cli.runs.display import OnRunProgress
from penstock.cli.runs.environment import RunEnvironment
from penstock.cli.serve.supervisor import StopSignals
from penstock.errors import StoreUnavailable
from penstock.runs.execution import DriveResult, Execution, ResumeOptions, RunServices
from penstock.runs.lease import LEASE_S, OwnedRun
from penstock.runs.ownership import DrivenElsewhere, take_run
from penstock.runs.progress import RunProgress

_TURN_S = 0.1
_TAKE_PAUSE_S = 0.5
# A model that this command started may take long to load; one that others serve is there or not.
_PATIENCE_S = 300.0


@dataclass(slots=True)
class _Latest:
    progress: RunProgress | None = None

    def on_progress(self, progress: RunProgress) -> None:
        self.progress = progress


def drive_run(
    environment: RunEnvironment,
    find_run: Callable[[Runs], str],
    *,
    stop: StopSignals,
    on_progress: OnRunProgress,
    on_start: Callable[[OwnedRun], None],
    options: ResumeOptions | None = None,
) -> tuple[OwnedRun, DriveResult]:
    """Take the run whose id `find_run` returns and drive it until it ends, or until a stop signal interrupts it."""
    with closing(RedisStore(environment.redis_url, name="penstock-run-command")) as store:
        runs = RunStore(store)
        owned = _take(runs, find_run(runs), environment, stop)
    on_start(owned)
    latest = _Latest()
    patience_s = _PATIENCE_S if owned.run.spec.model in environment.served else 0.0
    services = RunServices(environment.redis_url, environment.blobs, environment.state_dir, patience_s=patience_s)
    execution = Execution(owned, services, on_progress=latest.on_progress, options=options)
    return owned, _watch(execution, environment, latest, stop=stop, on_progress=on_progress)


def _take(runs: Runs, run_id: str, environment: RunEnvironment, stop: StopSignals) -> OwnedRun:
    """Take the run; waits at most one lease for that of a driver on another machine to expire."""
    give_up_at = time.monotonic() + LEASE_S + 1.0
    while True:
        try:
            return take_run(runs, run_id)
        except DrivenElsewhere:
            if time.monotonic() > give_up_at or stop.count:
                raise
        environment.turn()
        stop.wait(_TAKE_PAUSE_S)


def _watch(
    execution: Execution, environment: RunEnvironment, latest: _Latest, *, stop: StopSignals, on_progress: OnRunProgress
) -> DriveResult:
    ended: list[DriveResult | BaseException] = []

    def work() -> None:
        try:
            ended.append(execution.execute())
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            ended.append(error)

    thread = threading.Thread(target=work, name="run-driver", daemon=True)
    thread.start()
    while thread.is_alive():
        environment.turn()
        if stop.count:
            execution.interrupt()
        if stop.count > 1:
            raise StoreUnavailable("stopped by a second signal; the run is left at its last commit")
        if latest.progress is not None:
            on_progress(latest.progress)
        thread.join(_TURN_S)
    [found] = ended
    if isinstance(found, BaseException):
        raise found
    return found
