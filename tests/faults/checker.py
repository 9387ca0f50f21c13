"""The verdict on one fault: which jobs were accepted, how they ended, what clients saw, and whether the store is sound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.contract.dumps import Dump
from tests.contract.invariants import check_invariants
from tests.faults.asker import Asked
from tests.faults.executions import Executions
from tests.faults.ledger import Entry, Ledger


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the score sheet.

    `lost`: jobs that were accepted and never ended, or ended with a wrong digest. `views`: jobs that showed two different ends,
    or took one back. `extra`: executions beyond one per job. `recover_s`: seconds from the fault (or its healing) to the first
    end of a job that the fault hit. `unexpected`: answers other than 2xx, 429, 503 with Retry-After. `gave_up`: jobs that ended
    otherwise than their input deserved. `notes`: what else was measured. `complaints`: why the fault did not pass. `took_s`:
    seconds of the whole scenario. `others`: the share of the machine that other programs took meanwhile, from 0 to 1. `asked`,
    `right`: predictions asked for while all this went on, and those answered with the right output. `grown_mib`: by how much
    the process that grew most has grown.
    """

    fault: str
    system: str
    accepted: int
    terminal: int
    lost: int
    views: int
    extra: int
    recover_s: float | None
    unexpected: int
    gave_up: int = 0
    passed: bool = True
    notes: str = ""
    complaints: tuple[str, ...] = ()
    took_s: float = 0.0
    others: float = 0.0
    asked: int | None = None
    right: int | None = None
    grown_mib: float | None = None

    def row(self) -> dict[str, Any]:
        return asdict(self)


def with_asked(verdict: Verdict, asked: Asked) -> Verdict:
    """Return the verdict with what users and operators met meanwhile; a fault passes only if both had no reason to complain."""
    return replace(
        verdict,
        asked=asked.asked,
        right=asked.right,
        grown_mib=asked.grown_mib,
        passed=verdict.passed and not asked.complaints,
        complaints=(*verdict.complaints, *asked.complaints),
    )


def is_lost(entry: Entry) -> bool:
    last = entry.last
    if last is None or not last.final:
        return True
    return last.status == "succeeded" and last.digest != entry.digest


def gave_up(entry: Entry) -> bool:
    return not is_lost(entry) and entry.last is not None and entry.last.status != entry.hopes


def recovery_s(entries: Iterable[Entry], hit: set[str], since: float) -> float | None:
    """Return the seconds from `since` (Unix) to the first end of a job in `hit` (nonces); None if no such job ended later."""
    ends = [entry.last.finished_at for entry in entries if entry.key in hit and entry.last is not None and entry.last.final]
    later = [end - since for end in ends if end > since]
    return round(min(later), 3) if later else None


def judge(
    fault: str,
    system: str,
    ledger: Ledger,
    executions: Executions,
    *,
    dump: Dump | None = None,
    recover_s: float | None = None,
    most_extra: int | None = None,
    most_recover_s: float | None = None,
    notes: str = "",
    complaints: Iterable[str] = (),
) -> Verdict:
    """A pass means that nothing is lost, taken back or unexpected, the dump is sound, and the fault's limits hold."""
    entries = ledger.accepted()
    lost = [entry for entry in entries if is_lost(entry)]
    views = [entry for entry in entries if entry.retracted()]
    sad = [entry for entry in entries if gave_up(entry)]
    extra = executions.extra(set(ledger.entries))
    found = [*complaints, *_named("lost", lost), *_named("two ends", views), *_named("gave up", sad), *ledger.unexpected[:5]]
    found += _unsound(dump) if dump is not None else []
    if most_extra is not None and extra > most_extra:
        found.append(f"{extra} extra executions, at most {most_extra} allowed")
    if most_recover_s is not None and recover_s is not None and recover_s > most_recover_s:
        found.append(f"recovered after {recover_s:g} s, {most_recover_s:g} s allowed")
    return Verdict(
        fault=fault,
        system=system,
        accepted=len(entries),
        terminal=sum(entry.ended for entry in entries),
        lost=len(lost),
        views=len(views),
        extra=extra,
        recover_s=recover_s,
        unexpected=len(ledger.unexpected),
        gave_up=len(sad),
        passed=not found,
        notes=notes,
        complaints=tuple(found),
    )


def _named(what: str, entries: list[Entry]) -> list[str]:
    if not entries:
        return []
    shown = [f"{entry.job} {sorted(entry.ends()) or entry.last}" for entry in entries[:3]]
    return [f"{what}: {len(entries)}, e.g. {'; '.join(shown)}"]


def _unsound(dump: Dump) -> list[str]:
    try:
        check_invariants(dump)
    except AssertionError as fault:
        return [f"invariants: {str(fault)[:500]}"]
    # The reconciler would hide what a crash left behind.
    return [f"{dump.repaired} places of jobs had to be repaired"] if dump.repaired else []
