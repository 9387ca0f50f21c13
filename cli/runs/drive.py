"""Drives a run in this process: the driver in a thread; the main thread supervises the processes and updates the display."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.broker.protocol import membership
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.cli.runs.display import OnRunProgress
from penstock.cli.runs.environment import RunEnvironment
from penstock.cli.serve.process_manager import StopSignals
from penstock.errors import StoreUnavailable
from penstock.run import Run, RunState
from penstock.runs.execution import DriveResult, Execution, ResumeOptions, RunServices
from penstock.runs.lease import LEASE_S, OwnedRun
from penstock.runs.ownership import DrivenElsewhere, take_run
from penstock.runs.progress import RunProgress
from penstock.runs.runner import HelpedRun, RunHelper

_TURN_S = 0.1
_TAKE_PAUSE_S = 0.5
_LOOK_S = 0.5
# A model that this command starts may take long to load; a model of other workers should be ready.
_PATIENCE_S = 300.0


@dataclass(slots=True)
class _Latest:
    progress: RunProgress | None = None

    def on_progress(self, progress: RunProgress) -> None:
        self.progress = progress


def drive_run(
    environment: RunEnvironment,
    find_run: Callable[[RunStore], str],
    *,
    stop: StopSignals,
    on_progress: OnRunProgress,
    on_start: Callable[[Run], None],
    options: ResumeOptions | None = None,
    drivers: int = 1,
) -> tuple[Run, DriveResult]:
    """Take the run whose id `find_run` returns and drive it until it ends, or until a stop signal interrupts it.

    `drivers`: how many processes drive the parts of a run that has several.
    """
    membership.enter("run command")
    with closing(RedisStore(environment.redis_url, name="penstock-run-command")) as store:
        runs = RunStore(store)
        run_id = find_run(runs)
        run = runs.read(run_id)
        if run is not None and run.spec.parts > 1:
            on_start(run)
            drive = PartsDrive(environment, runs, run, drivers=drivers, on_progress=on_progress)
            return drive.run, _watch(drive.work, drive.interrupt, drive.turn, stop=stop)
        owned = _take(runs, run_id, environment, stop)
    on_start(owned.run)
    latest = _Latest()
    services = services_of(environment, owned.run)
    execution = Execution(owned, services, on_progress=latest.on_progress, options=options)

    def turn() -> None:
        environment.turn()
        if latest.progress is not None:
            on_progress(latest.progress)

    return owned.run, _watch(execution.execute, execution.interrupt, turn, stop=stop)


def services_of(environment: RunEnvironment, run: Run) -> RunServices:
    patience_s = _PATIENCE_S if run.spec.model in environment.served else 0.0
    return RunServices(environment.redis_url, environment.blobs, environment.state_dir, patience_s=patience_s)


def _take(runs: RunStore, run_id: str, environment: RunEnvironment, stop: StopSignals) -> OwnedRun:
    """Take the run; wait at most one lease until the lease of a driver on another machine expires."""
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
    work: Callable[[], DriveResult], interrupt: Callable[[], None], turn: Callable[[], None], *, stop: StopSignals
) -> DriveResult:
    """Run `work` in a thread, and call `turn` in this one until it returns; a stop signal interrupts it."""
    ended: list[DriveResult | BaseException] = []

    def guarded() -> None:
        try:
            ended.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            ended.append(error)

    thread = threading.Thread(target=guarded, name="run-driver", daemon=True)
    thread.start()
    while thread.is_alive():
        if stop.count:
            interrupt()
        if stop.count > 1:
            raise StoreUnavailable("stopped by a second signal; the run is left at its last commit")
        turn()
        thread.join(_TURN_S)
    [outcome] = ended
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


class PartsDrive:
    """A run of many parts: this process drives them one by one, beside `drivers` - 1 more processes and any on other hosts."""

    def __init__(
        self, environment: RunEnvironment, runs: RunStore, run: Run, *, drivers: int, on_progress: OnRunProgress
    ) -> None:
        self.run = run
        self._environment, self._runs, self._on_progress = environment, runs, on_progress
        self._helper = RunHelper(services_of(environment, run), run.id)
        self._drivers, self._started_at, self._look_at = drivers, time.monotonic(), 0.0

    def work(self) -> DriveResult:
        helped = self._helper.help()
        return result_of(helped)

    def interrupt(self) -> None:
        self._helper.interrupt()

    def turn(self) -> None:
        """Supervise the processes and show the progress of the run."""
        self._environment.turn()
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        try:
            run, parts = self._runs.read(self.run.id), self._runs.parts(self.run.id)
        except StoreUnavailable:
            # The drivers log it, and the run continues when the store is back.
            return
        if run is not None:
            self._start_drivers(parts)
            self._on_progress(progress_of(run, parts, elapsed_s=now - self._started_at))

    def _start_drivers(self, parts: Sequence[Run]) -> None:
        """Start the other drivers once the run is split."""
        while len(parts) > 1 and self._drivers > 1:
            self._environment.add_driver(self.run.id)
            self._drivers -= 1


def progress_of(run: Run, parts: Sequence[Run], *, elapsed_s: float) -> RunProgress:
    """The progress of a run from its record and its parts' records."""
    ended, rows = sum(part.state.final for part in parts), run.counts.done + run.counts.failed
    share = rows / run.counts.total if run.counts.total else ended / len(parts) if parts else None
    notes = [f"{ended} of {len(parts)} parts done"] if parts else []
    notes += [f"part {part.part.number}: {part.error_message}" for part in parts if part.part and part.error_message][:1]
    return RunProgress(run.counts, run.state.value, run.rows_per_s, run.busy, elapsed_s, "; ".join(notes), share)


def result_of(helped: HelpedRun) -> DriveResult:
    """The result of a run of many parts, ended or not."""
    run, last = helped.run, helped.last
    state = run.state if run.state.final else RunState.RUNNING
    hint = last.hint if last and last.error_code == run.error_code else ""
    return DriveResult(state, run.counts, run.rows_per_s, run.error_code, run.error_message, run.details, hint)
