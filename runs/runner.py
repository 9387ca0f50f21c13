"""Drives the runs that were made over HTTP: takes those that wait and those whose driver died, a few at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing

from penstock.broker.run_contract import Runs
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import CallerError, StoreUnavailable
from penstock.run import Run, RunState
from penstock.runs.execution import Execution, RunServices
from penstock.runs.lease import OwnedRun
from penstock.runs.ownership import BY_COMMAND, orphaned, take
from penstock.runs.progress import RunProgress

log = logging.getLogger("penstock.runs")

MOST_AT_ONCE = 2
LOOK_S = 1.0
_LIVE = tuple(state for state in RunState if not state.final)
_READ = 100


def to_take(runs: list[Run], *, room: int, now: float) -> list[Run]:
    """The oldest runs that nobody drives and no command owns, as many as there is room for."""
    free = [
        run
        for run in reversed(runs)
        if BY_COMMAND not in run.spec.metadata and (orphaned(run, now=now) or (run.state is RunState.QUEUED and not run.driver))
    ]
    return free[:room]


class Runner:
    """`run` until `stopped`; then the runs under way are left at their last commit, for the next runner."""

    def __init__(self, shop: RunServices, *, stopped: Callable[[float], bool]) -> None:
        self._shop, self._stopped = shop, stopped
        self._under_way: dict[threading.Thread, Execution] = {}

    def run(self) -> None:
        with closing(RedisStore(self._shop.redis_url, name="penstock-runner")) as store:
            while not self._stopped(LOOK_S):
                self._look(RunStore(store))
        for execution in self._under_way.values():
            execution.interrupt()
        for thread in self._under_way:
            thread.join()

    def _look(self, runs: Runs) -> None:
        self._under_way = {thread: execution for thread, execution in self._under_way.items() if thread.is_alive()}
        room = MOST_AT_ONCE - len(self._under_way)
        if not room:
            return
        try:
            for run in to_take(runs.runs(states=_LIVE, limit=_READ), room=room, now=time.time()):
                self._begin(runs, run)
        except StoreUnavailable as away:
            log.info("runs_not_read", extra={"error": away.message})

    def _begin(self, runs: Runs, run: Run) -> None:
        try:
            held = take(runs, run.id)
        except CallerError as other:
            log.info("run_not_taken", extra={"run": run.id, "error": other.message})
            return
        log.info("run_taken", extra={"run": run.id, "model": run.spec.model})
        execution = Execution(held, self._shop, told=_unheard)
        thread = threading.Thread(target=_work, args=(execution, held), name=f"run-{run.id}")
        self._under_way[thread] = execution
        thread.start()


def _work(execution: Execution, held: OwnedRun) -> None:
    try:
        left = execution.execute()
    except Exception:
        # One run's bug must not end the others; its lease passes, and it is taken up again.
        log.exception("run_broke", extra={"run": held.run.id})
        return
    log.info("run_left", extra={"run": held.run.id, "state": left.state.value, "code": left.error_code})


def _unheard(progress: RunProgress) -> None:
    """Whoever wants to know reads the run's record."""
