"""Drives the runs that were made over HTTP: takes waiting ones and those whose driver died, two at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing

from penstock.broker.run_contract import Runs
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import CallerError, StoreUnavailable
from penstock.run import Run, RunState
from penstock.runs.execution import Execution, RunServices
from penstock.runs.lease import OwnedRun
from penstock.runs.ownership import BY_COMMAND, is_orphaned, take_run
from penstock.runs.progress import RunProgress

log = logging.getLogger("penstock.runs")

MOST_AT_ONCE = 2
POLL_S = 1.0
_LIVE = tuple(state for state in RunState if not state.final)
_READ = 100


def runs_to_take(runs: list[Run], *, room: int, now: float) -> list[Run]:
    """The oldest runs that nobody drives and no command owns, at most `room`. `runs` are newest first."""
    return [run for run in reversed(runs) if BY_COMMAND not in run.spec.metadata and _is_free(run, now)][:room]


def _is_free(run: Run, now: float) -> bool:
    return is_orphaned(run, now=now) or (run.state is RunState.QUEUED and not run.driver)


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
        room = MOST_AT_ONCE - len(self._under_way)
        if not room:
            return
        try:
            for run in runs_to_take(runs.runs(states=_LIVE, limit=_READ), room=room, now=runs.now()):
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
        # A bug in one run must not end the others. Its lease expires, and a runner takes it again.
        log.exception("run_broke", extra={"run": owned.run.id})
        return
    log.info("run_left", extra={"run": owned.run.id, "state": result.state.value, "code": result.error_code})


def _ignore(progress: RunProgress) -> None:
    """The run's record already has its progress."""
