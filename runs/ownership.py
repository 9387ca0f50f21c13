"""The ownership of runs: takes new, interrupted and orphaned runs; reopens and cancels runs.

A driver's name contains its process and host, so that other processes there can tell when it is gone.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.broker.contract import CancelStatus, ReopenStatus, TakeStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.errors import Conflict, NotFound
from penstock.job import new_serial
from penstock.run import Run, RunState
from penstock.runs.lease import LEASE_S, OwnedRun

_NAME_PARTS = 5
_START_FIELD = 19  # `starttime` of proc(5), counted after the process's name in /proc/PID/stat, which may contain spaces


class DrivenElsewhere(Conflict):
    """Another driver owns the run, and this process cannot tell whether that driver is still alive."""


def take_run(runs: RunStore, run_id: str) -> OwnedRun:
    """The run, owned by this process for a lease. Raises `NotFound`, `Conflict` if it has ended, `DrivenElsewhere`."""
    driver = driver_name()
    taken = runs.take(run_id, driver, lease_s=LEASE_S)
    if taken.status is TakeStatus.HELD and taken.run is not None and is_gone(taken.run.driver):
        # The run would otherwise stay taken until the lease of the dead driver expires.
        taken = runs.take(run_id, driver, lease_s=LEASE_S, dead=taken.run.driver)
    if taken.run is None:
        raise no_such_run(run_id)
    if taken.status is TakeStatus.HELD:
        raise DrivenElsewhere(
            f"run {run_id} is driven by {process_of(taken.run.driver)}",
            hint="cancel it, or wait: the lease of a driver that died ends after 15 s",
        )
    if taken.status is TakeStatus.FINAL:
        why = f": {taken.run.error_message}" if taken.run.error_message else ""
        raise Conflict(f"run {run_id} has ended: it is {taken.run.state.value}{why}")
    return OwnedRun(taken.run, driver, runs.now())


def reopen_run(runs: RunStore, run_id: str) -> None:
    """Make a run that ended early available again. Raises `NotFound`; `Conflict` if it is completed, or has an output."""
    run = runs.read(run_id)
    if run is not None and run.is_cut_short:
        raise Conflict(
            f"run {run_id} is {run.state.value}, and its output has the rows that ran",
            hint=f"to run the others: penstock run resume {run_id} --failed",
        )
    answer = runs.reopen(run_id)
    if answer is ReopenStatus.MISSING:
        raise no_such_run(run_id)
    if answer is ReopenStatus.COMPLETED:
        raise Conflict(
            f"run {run_id} is completed: there is nothing left to do",
            hint=f"to run its failed rows again: penstock run resume {run_id} --failed",
        )


def cancel_run(runs: RunStore, run_id: str) -> str:
    """Cancel a run, at once if no driver is at work; returns what happened, in words. Raises `NotFound`, `Conflict`."""
    answer = runs.ask_cancel(run_id)
    if answer is CancelStatus.MISSING:
        raise no_such_run(run_id)
    if answer is CancelStatus.FINAL:
        raise Conflict(f"run {run_id} has ended already")
    if answer is CancelStatus.CANCELLED:
        # The drivers of parts learn of it with their next beat.
        return "cancelled"
    try:
        owned = take_run(runs, run_id)
    except DrivenElsewhere:
        return "cancel requested"
    runs.update(run_id, owned.driver, RunChange(state=RunState.CANCELLED), lease_s=0.0)
    return "cancelled"


def is_orphaned(run: Run, *, now: float) -> bool:
    """True for an unfinished run whose driver is gone; commands show it as `interrupted`. `now` is by the store's clock."""
    if run.state.final or not run.driver:
        return False
    # A run with parts may have other drivers than the one that its record shows.
    return run.driver_until <= now or (not run.parts and is_gone(run.driver))


def no_such_run(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id!r}", hint="`penstock run list` shows them")


def driver_name() -> str:
    """A name unique to one drive: host, process, the process's start, where its number counts, a serial."""
    return f"{os.uname().nodename}:{os.getpid()}:{_start_of(os.getpid())}:{_place()}:{new_serial()}"


def process_of(driver: str) -> str:
    """The host and the number of a driver's process, for people."""
    return ":".join(driver.split(":")[:2])


def is_gone(driver: str) -> bool:
    """True if the driver's process ran where this one runs, and has ended. False if this process cannot tell."""
    parts = driver.split(":")
    if len(parts) != _NAME_PARTS or not parts[1].isdecimal():
        return False
    _, pid, started, place, _ = parts
    if not place or place != _place() or not _start_of(os.getpid()):
        return False
    return _has_ended(int(pid)) or _start_of(int(pid)) not in ("", started)


def _place() -> str:
    """Where a process's number means that process: this boot of this kernel, and the PID namespace in it; empty if unknown.

    The host's name does not say that: containers and virtual machines may share one.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # It belongs to another user, whose files in /proc may also be hidden.
        return False
    return False


def _start_of(pid: int) -> str:
    """The start of a process in the kernel's clock ticks; empty if this process cannot see it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[_START_FIELD]
