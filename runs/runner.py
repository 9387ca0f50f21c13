"""Drives the runs that were made over HTTP: takes waiting ones and those whose driver died, two at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from penstock.broker.run_contract import Runs
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import CallerError, StoreUnavailable
from penstock.run import Run
from penstock.runs.execution import Execution, RunServices
from penstock.runs.lease import OwnedRun
from penstock.runs.ownership import take_run
from penstock.runs.progress import RunProgress

log = logging.getLogger("penstock.runs")

MOST_AT_ONCE = 2
POLL_S = 1.0


def runs_to_begin(waiting: Sequence[Run], *, under_way: int, is_alone: bool) -> list[Run]:
    """Those of the waiting runs to begin now, beside the ones under way. `is_alone`: one of these must stay alone.

    A run whose driver died before it got any further may have been the cause, so it runs alone: a run beside it would be
    charged as well. It waits until the others have ended, and those behind it wait with it.
    """
    begun: list[Run] = []
    for run in waiting if not is_alone else ():
        if run.drives and (under_way or begun):
            break
        begun.append(run)
        if run.drives:
            break
    return begun


class Runner:
    """`run` until `stopped`; then each run under way is left at its last commit, for the next runner."""

    def __init__(self, services: RunServices, *, stopped: Callable[[float], bool]) -> None:
        self._services, self._stopped = services, stopped
        self._under_way: dict[threading.Thread, Execution] = {}

    def run(self) -> None:
        with closing(RedisStore(self._services.redis_url, name="penstock-runner")) as store:
            while not self._stopped(POLL_S):
                self._take_runs(RunStore(store))
        for execution in self._under_way.values():
            execution.interrupt()
        for thread in self._under_way:
            thread.join()

    def _take_runs(self, runs: Runs) -> None:
        self._under_way = {thread: execution for thread, execution in self._under_way.items() if thread.is_alive()}
        is_alone = any(execution.is_suspect() for execution in self._under_way.values())
        try:
            # Without room the look still ends the runs whose deadline has passed.
            waiting = runs.look(MOST_AT_ONCE - len(self._under_way))
            for run in runs_to_begin(waiting, under_way=len(self._under_way), is_alone=is_alone):
                self._begin(runs, run)
        except StoreUnavailable as away:
            log.info("runs_not_read", extra={"error": away.message})

    def _begin(self, runs: Runs, run: Run) -> None:
        try:
            owned = take_run(runs, run.id)
        except CallerError as refusal:
            log.info("run_not_taken", extra={"run": run.id, "error": refusal.message})
            return
        log.info("run_taken", extra={"run": run.id, "model": run.spec.model})
        execution = Execution(owned, self._services, on_progress=_ignore)
        thread = threading.Thread(target=_execute, args=(execution, owned), name=f"run-{run.id}")
        self._under_way[thread] = execution
        thread.start()


def _execute(execution: Execution, owned: OwnedRun) -> None:
    try:
        result = execution.execute()
    except Exception:
        # A bug in one run must not end the others. Its lease expires, and a runner takes it again: three times at most.
        log.exception("run_broke", extra={"run": owned.run.id})
        return
    log.info("run_left", extra={"run": owned.run.id, "state": result.state.value, "code": result.error_code})


def _ignore(progress: RunProgress) -> None:
    """The run's record already has its progress."""
