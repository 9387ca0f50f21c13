"""Becoming the driver of a run: a new one, one that was left, one whose driver died."""

from __future__ import annotations

from penstock.broker.contract import CancelStatus
from penstock.broker.run_contract import ReopenStatus, RunChange, Runs, TakeStatus
from penstock.errors import Conflict, NotFound
from penstock.run import Run, RunState
from penstock.runs.driver_names import driver_name, is_gone
from penstock.runs.lease import LEASE_S, OwnedRun

# Of a run's metadata: a command drives it, and no runner is to take it.
BY_COMMAND = "penstock:command"


class HeldElsewhere(Conflict):
    """Another driver has the run, and it cannot be told from here whether it lives."""


def take(runs: Runs, run_id: str) -> OwnedRun:
    """The run, held by this process for a lease. Raises `NotFound`, `Conflict` for one that is over, `HeldElsewhere`."""
    driver = driver_name()
    taken = runs.take(run_id, driver, lease_s=LEASE_S)
    if taken.status is TakeStatus.HELD and taken.run is not None and is_gone(taken.run.driver):
        # In the name of the dead, who would otherwise keep the run for the rest of its lease.
        runs.update(run_id, taken.run.driver, RunChange(), lease_s=0.0)
        taken = runs.take(run_id, driver, lease_s=LEASE_S)
    if taken.run is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`penstock run list` shows them")
    if taken.status is TakeStatus.HELD:
        raise HeldElsewhere(
            f"run {run_id} is driven by {taken.run.driver.rpartition(':')[0]}",
            hint="cancel it, or wait: a driver that died is forgotten after 15 s",
        )
    if taken.status is TakeStatus.FINAL:
        raise Conflict(f"run {run_id} has ended: it is {taken.run.state.value}")
    return OwnedRun(taken.run, driver)


def reopened(runs: Runs, run_id: str) -> None:
    """Make a run that ended early one that can be taken. Raises `NotFound`, and `Conflict` for one that is completed."""
    answer = runs.reopen(run_id)
    if answer is ReopenStatus.MISSING:
        raise NotFound(f"there is no run {run_id!r}", hint="`penstock run list` shows them")
    if answer is ReopenStatus.COMPLETED:
        raise Conflict(
            f"run {run_id} is completed: there is nothing left to do",
            hint=f"rows that failed are tried again by: penstock run retry-failed {run_id}",
        )


def cancelled(runs: Runs, run_id: str) -> str:
    """Ends a run, at once where no driver is at work; the word for what became of it. Raises `NotFound`, `Conflict`."""
    answer = runs.ask_cancel(run_id)
    if answer is CancelStatus.MISSING:
        raise NotFound(f"there is no run {run_id!r}", hint="`penstock run list` shows them")
    if answer is CancelStatus.FINAL:
        raise Conflict(f"run {run_id} has ended already")
    if answer is CancelStatus.CANCELLED:
        return "cancelled"
    try:
        held = take(runs, run_id)
    except HeldElsewhere:
        return "its driver was told"
    runs.update(run_id, held.driver, RunChange(state=RunState.CANCELLED), lease_s=0.0)
    return "cancelled"


def orphaned(run: Run, *, now: float) -> bool:
    """True for a run under way whose driver is gone; shown as `interrupted`. `now` is Unix time."""
    return not run.state.final and bool(run.driver) and (run.driver_until <= now or is_gone(run.driver))
