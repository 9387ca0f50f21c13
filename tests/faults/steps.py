"""Steps that many faults share: wait until work runs, note which jobs a fault hit, wait until everything has ended, judge."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.contract.dumps import Dump
from tests.eventually import eventually
from tests.faults.checker import Verdict, judge, recovery_s, with_asked
from tests.faults.driver import order
from tests.faults.executions import Execution
from tests.faults.ledger import Entry
from tests.faults.processes import Group
from tests.faults.stack import Stack


@dataclass(frozen=True, slots=True)
class Hit:
    """The moment of a fault or of its healing (Unix seconds), and the jobs that ran or waited then."""

    at: float
    nonces: set[str] = field(default_factory=set)


def echoes(count: int, *, seconds: float = 0.0, **fields: Any) -> list[dict[str, Any]]:
    """Return `count` plain orders; with `seconds`, each order takes that long."""
    return [order("sleep" if seconds else "echo", seconds=seconds, **fields) for _ in range(count)]


def await_running(stack: Stack, *, within_s: float = 30.0) -> Execution:
    """Return the latest execution of a job that has begun and not ended; wait for one if need be."""

    def found() -> Execution | None:
        running = stack.executions.running(time.time()) & stack.driver.ledger.entries.keys()
        begun = [line for line in stack.executions.of("begin") if line.nonce in running]
        return begun[-1] if begun else None

    latest = eventually(found, timeout_s=within_s)
    assert latest is not None
    return latest


def owner(stack: Stack, execution: Execution) -> Group:
    """Return the worker that ran the execution."""
    return next(worker for worker in stack.workers if worker.running and worker.pid == execution.supervisor)


def hit_now(stack: Stack) -> Hit:
    """Return a hit on everything that runs at this moment."""
    now = time.time()
    return Hit(now, stack.executions.running(now))


def hit_on(stack: Stack, worker: Group) -> Hit:
    """Return a hit on what this worker runs at this moment; the jobs of other workers are left to those workers."""
    hit = hit_now(stack)
    mine = {line.nonce for line in stack.executions.all if line.supervisor == worker.pid}
    return Hit(hit.at, hit.nonces & mine)


def healed_now(stack: Stack) -> Hit:
    """Return a hit on everything that is accepted and unfinished at this moment."""
    return Hit(time.time(), {entry.key for entry in stack.driver.ledger.waiting()})


def conclude(
    stack: Stack,
    name: str,
    hit: Hit | None = None,
    *,
    within_s: float = 60.0,
    most_extra: int | None = None,
    most_recover_s: float | None = None,
    notes: str = "",
    complaints: Iterable[str] = (),
) -> Verdict:
    """Wait until everything has ended and users are served again, look at all jobs once more, and judge."""
    entries = stack.driver.ledger.accepted()
    found = list(complaints)
    if not stack.driver.await_ends(entries, within_s=within_s):
        found.append(f"stuck: {len(stack.driver.ledger.waiting())} jobs {within_s:g} s later")
    stack.driver.look_again()
    asked = stack.asker.conclude()
    verdict = judge(
        name,
        "penstock",
        stack.driver.ledger,
        stack.executions,
        dump=_settled_dump(stack),
        recover_s=recovery_s(entries, hit.nonces, hit.at) if hit else None,
        most_extra=most_extra,
        most_recover_s=most_recover_s,
        notes=notes,
        complaints=found,
    )
    return with_asked(verdict, asked)


def _settled_dump(stack: Stack) -> Dump:
    """Return a dump without jobs under way. A prediction that nobody waits for any more may still run to its deadline."""
    until = time.monotonic() + 30.0
    dump = stack.dump()
    while not all(job.state.final for job in dump.jobs.values()) and time.monotonic() < until:
        time.sleep(0.1)
        dump = stack.dump()
    return dump


def ended_as(entries: Sequence[Entry], status: str) -> int:
    return sum(entry.last is not None and entry.last.status == status for entry in entries)


def errors_of(entries: Sequence[Entry]) -> set[str]:
    return {entry.last.error for entry in entries if entry.last is not None and entry.last.error}


def with_recovery(verdict: Verdict, recover_s: float, *, most_s: float, notes: str = "") -> Verdict:
    """Return the verdict with a recovery time that was measured otherwise than up to the first end of a job."""
    late = [f"recovered after {recover_s:.2f} s, {most_s:g} s allowed"] if recover_s > most_s else []
    return replace(
        verdict,
        recover_s=round(recover_s, 3),
        notes=notes or verdict.notes,
        passed=verdict.passed and not late,
        complaints=(*verdict.complaints, *late),
    )
