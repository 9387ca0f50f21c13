"""Drives runs that were created over HTTP: takes waiting runs and those whose driver died, two at a time.

A helper drives only one run of any origin: its free parts, one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import CallerError, Conflict, StoreUnavailable
from penstock.run import Run
from penstock.runs.execution import DriveResult, Execution, RunServices
from penstock.runs.lease import OwnedRun
from penstock.runs.ownership import is_gone, no_such_run, take_run
from penstock.runs.parts.part_files import PART_HELD, PartNotHere
from penstock.runs.progress import RunProgress

log = logging.getLogger("penstock.runs")

MOST_AT_ONCE = 2
POLL_S = 1.0
# How long a runner skips a run whose files it cannot read, for other runners.
_PASS_OVER_S = 60.0
# How long a run that may have killed its driver is passed over while others are under way. They are then left for it.
SUSPECT_WAITS_S = 600.0
HELP_POLL_S = 0.5
# A network file system shows files of another host with a delay, so this host may soon be able to read them.
_MOST_GIVEN_BACK = 20


def runs_to_begin(waiting: Sequence[Run], *, under_way: int, is_alone: bool) -> list[Run]:
    """The waiting runs to begin now, in addition to those under way. `is_alone`: one of those must run alone.

    A run whose driver died without progress may be the cause, so it runs alone: a run beside it would be charged as well.
    It is passed over while others are under way, and the runs behind it begin.
    """
    if is_alone:
        return []
    if waiting and waiting[0].drives and not under_way:
        return [waiting[0]]
    return [run for run in waiting if not run.drives]


class Runner:
    """`run` until `stopped`; then each run under way is left at its last commit, for the next runner."""

    def __init__(self, services: RunServices, *, stopped: Callable[[float], bool]) -> None:
        self._services, self._stopped = services, stopped
        self._under_way: dict[threading.Thread, Execution] = {}
        # Runs that this host cannot read, each with the time until which it is skipped. Several threads add to it; one removes.
        self._passed_over: dict[str, float] = {}
        # Runs that may have killed their drivers, each with the time from which it no longer waits for those under way.
        self._suspects: dict[str, float] = {}

    def run(self) -> None:
        with closing(RedisStore(self._services.redis_url, name="penstock-runner")) as store:
            while not self._stopped(POLL_S):
                self._take_runs(RunStore(store))
        for execution in self._under_way.values():
            execution.interrupt()
        for thread in self._under_way:
            thread.join()

    def _take_runs(self, runs: RunStore) -> None:
        self._under_way = {thread: execution for thread, execution in self._under_way.items() if thread.is_alive()}
        try:
            overdue = self._overdue_suspect(runs)
            # Even without room, this look-up ends runs whose deadline has passed.
            without = [*self._unreadable(), *(self._suspects if self._under_way else ())]
            waiting = runs.look(0 if overdue else MOST_AT_ONCE - len(self._under_way), without=without)
            for run in self._runs_to_begin([overdue] if overdue else waiting):
                self._begin(runs, run)
        except StoreUnavailable as away:
            log.info("runs_not_read", extra={"error": away.message})

    def _runs_to_begin(self, waiting: Sequence[Run]) -> list[Run]:
        is_alone = any(execution.is_suspect() for execution in self._under_way.values())
        begun = runs_to_begin(waiting, under_way=len(self._under_way), is_alone=is_alone)
        for run in waiting:
            if run.drives and run not in begun:
                self._suspects.setdefault(run.part_of or run.id, time.monotonic() + SUSPECT_WAITS_S)
        return begun

    def _overdue_suspect(self, runs: RunStore) -> Run | None:
        """A suspect run that was passed over for long enough; the runs under way are asked to leave for it."""
        for run_id, until in list(self._suspects.items()):
            if until > time.monotonic():
                continue
            run = runs.next_of(run_id)
            if run is not None and run.drives:
                for execution in self._under_way.values():
                    execution.interrupt()
                return run
            # Another runner has it, or it got further, or it has ended.
            del self._suspects[run_id]
        return None

    def _unreadable(self) -> list[str]:
        now = time.monotonic()
        for run_id in [run_id for run_id, until in list(self._passed_over.items()) if until < now]:
            del self._passed_over[run_id]
        return list(self._passed_over)

    def _begin(self, runs: RunStore, run: Run) -> None:
        try:
            owned = take_run(runs, run.id)
        except CallerError as refusal:
            log.info("run_not_taken", extra={"run": run.id, "error": refusal.message})
            return
        log.info("run_taken", extra={"run": run.id, "model": run.spec.model})
        self._suspects.pop(run.part_of or run.id, None)
        execution = Execution(owned, self._services, on_progress=_ignore)
        thread = threading.Thread(target=self._execute, args=(execution, owned), name=f"run-{run.id}")
        self._under_way[thread] = execution
        thread.start()

    def _execute(self, execution: Execution, owned: OwnedRun) -> None:
        try:
            result = execution.execute()
        except Exception:
            # A bug in one run must not end the others. Its lease expires, and a runner takes it again: three times at most.
            log.exception("run_broke", extra={"run": owned.run.id})
            return
        if result.error_code == PartNotHere.kind:
            self._passed_over[owned.run.part_of or owned.run.id] = time.monotonic() + _PASS_OVER_S
        log.info("run_left", extra={"run": owned.run.id, "state": result.state.value, "code": result.error_code})


@dataclass(frozen=True, slots=True)
class HelpedRun:
    """A run as it was left: ended, or interrupted. `last`: the result of this process's last drive of it."""

    run: Run
    last: DriveResult | None


class RunHelper:
    """One thread calls `help`, once; any other may call `interrupt`. `forever`: continue after the run's end, for a resume."""

    def __init__(self, services: RunServices, run_id: str, *, forever: bool = False) -> None:
        self._services, self._run_id, self._forever = services, run_id, forever
        self._interrupted = threading.Event()
        self._execution: Execution | None = None
        self._known: Run | None = None
        self._last: DriveResult | None = None
        self._given_back = 0

    def interrupt(self) -> None:
        """Leave the current part at its next commit."""
        self._interrupted.set()
        if execution := self._execution:
            execution.interrupt()

    def help(self) -> HelpedRun:
        """Returns when the run has ended, or after an interrupt. Raises `NotFound`; `Conflict` if it cannot be read here."""
        with closing(RedisStore(self._services.redis_url, name="penstock-run-helper")) as store:
            runs = RunStore(store)
            while not self._interrupted.is_set():
                run = self._read(runs)
                if run is not None and run.state.final and not self._forever:
                    break
                if run is None or run.state.final or not self._drive_next(runs):
                    self._interrupted.wait(HELP_POLL_S)
            run = self._read(runs) or self._known
            if run is None:
                raise StoreUnavailable("the store is away")
            return HelpedRun(run, self._last)

    def _read(self, runs: RunStore) -> Run | None:
        """The current record of the run; None while the store is unreachable."""
        try:
            run, known = runs.read(self._run_id), self._known
            if run is None and known is not None:
                # D42: the store lost its records. The run will be split as before, and the journals of its parts are on the
                # disk.
                run = runs.create(self._run_id, known.spec, owner=known.owner).run
        except StoreUnavailable as away:
            log.info("runs_not_read", extra={"error": away.message})
            return None
        if run is None:
            raise no_such_run(self._run_id)
        self._known = run
        return run

    def _drive_next(self, runs: RunStore) -> bool:
        """Drive one part, or the run itself; False if none is free now."""
        try:
            run = runs.next_of(self._run_id) or self._left_by_dead(runs)
            if run is None:
                return False
            owned = take_run(runs, run.id)
        except (StoreUnavailable, Conflict) as refusal:
            log.info("run_not_taken", extra={"run": self._run_id, "error": refusal.message})
            return False
        self._execution = Execution(owned, self._services, on_progress=_ignore)
        if self._interrupted.is_set():
            self._execution.interrupt()
        self._last = self._execution.execute()
        facts = {"run": owned.run.id, "state": self._last.state.value, "code": self._last.error_code}
        log.info("run_left", extra={**facts, "error": self._last.error_message})
        return self._is_done(self._last)

    def _left_by_dead(self, runs: RunStore) -> Run | None:
        """A part or run of a dead driver on this machine, which can be taken before its lease ends."""
        open_parts = [part for part in runs.parts(self._run_id) if not part.state.final]
        whole = None if open_parts else runs.read(self._run_id)
        held = open_parts if whole is None else [whole]
        return next((each for each in held if each.driver and not each.state.final and is_gone(each.driver)), None)

    def _is_done(self, result: DriveResult) -> bool:
        """Whether to continue without a pause. Raises `Conflict` if this host has given back too many parts in a row."""
        if result.error_code == PART_HELD:
            return False
        self._given_back = self._given_back + 1 if result.error_code == PartNotHere.kind else 0
        if self._given_back > _MOST_GIVEN_BACK:
            raise Conflict(f"this process cannot help with run {self._run_id}: {result.error_message}", hint=result.hint)
        return not self._given_back


def _ignore(progress: RunProgress) -> None:
    """The run's record already has its progress."""
