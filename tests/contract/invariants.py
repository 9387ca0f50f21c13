"""The invariants of a store at rest: they hold after every single call, whatever was called before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.job import JobState
from tests.contract.dumps import Dump, Stored
from tests.contract.event_dumps import event_faults
from tests.oracle.record import MAX_LOSSES, MAX_LOST_IN_A_ROW

PLACES = {JobState.QUEUED: ({"ready"}, {"solo"}, {"shards"}), JobState.DELAYED: ({"delayed"},)}


def check_invariants(dump: Dump) -> None:
    """Raise an AssertionError that names every invariant that does not hold."""
    faults = [*_faults_of_jobs(dump), *_totals(dump)]
    assert not faults, "\n".join(faults)


def check_jobs(dump: Dump) -> None:
    """As `check_invariants`, without the counters."""
    faults = list(_faults_of_jobs(dump))
    assert not faults, "\n".join(faults)


def _faults_of_jobs(dump: Dump) -> Iterator[str]:
    for serial, job in dump.jobs.items():
        yield from _faults(serial, job, dump)
        if stored := dump.events.get(serial):
            yield from (f"{serial} is {job.state}; {fault}" for fault in event_faults(job.state, stored))
    if dump.tickets != dump.waiting:
        yield f"tickets {dump.tickets} are not the waiting jobs {dump.waiting}"
    wrong = {
        "jobs in a line that never gets its turn": dump.turnless,
        "jobs whose owner's lists disagree with those of all": dump.mislisted,
        "index entries without a record": dump.strays,
    }
    yield from (f"{what}: {sorted(serials)}" for what, serials in wrong.items() if serials)


def _faults(serial: str, job: Stored, dump: Dump) -> Iterator[str]:
    final, leased = job.state.final, job.state is JobState.LEASED
    rules = {
        f"I1: settled by {job.final_token!r}": final or not job.final_token,
        f"I3: stands in {job.places}": _well_placed(job),
        f"I3: its worker {job.worker!r} has no lease": not leased or job.worker in dump.leases,
        f"I4: tried {job.attempts} times of {job.max_attempts}": job.attempts - job.losses <= job.max_attempts,
        f"I4: lost {job.losses} workers, {job.in_a_row} in a row": job.state is JobState.DEAD or _losses_fit(job),
        f"I4: crashed {job.crashes} times of {job.max_crashes}": job.crashes < job.max_crashes or job.state is JobState.DEAD,
        f"inbox: {serial in dump.inbox}, dealt with: {job.dealt_with}": (serial in dump.inbox) == _unanswered(job),
        f"I7: token {job.token!r}, epoch {job.epoch}, worker {job.worker!r}": _token_fits(job),
        "its day of collection is missing, or set too early": job.result_ttl_kept,
    }
    return (f"{serial} is {job.state}; {rule}" for rule, holds in rules.items() if not holds)


def _losses_fit(job: Stored) -> bool:
    return job.losses < MAX_LOSSES and job.in_a_row < MAX_LOST_IN_A_ROW


def _well_placed(job: Stored) -> bool:
    if job.state is JobState.LEASED:
        return job.places == (f"held:{job.worker}",)
    if ("ready" in job.places and job.shard) or ("shards" in job.places and not job.shard):
        return False
    return len(job.places) == len(set(job.places)) and set(job.places) in PLACES.get(job.state, (set(),))


def _unanswered(job: Stored) -> bool:
    return job.state in (JobState.FAILED, JobState.DEAD, JobState.EXPIRED) and not job.dealt_with


def _token_fits(job: Stored) -> bool:
    """Return whether the token fits the state: only a leased job has a token, which names this lease and its holder."""
    if job.state is JobState.LEASED:
        return job.token.startswith(f"{job.epoch}:{job.worker}:") and not job.token.endswith(":")
    return job.token == ""


def _waits_for_its_start(job: Stored) -> bool:
    return job.state is JobState.DELAYED and job.epoch == 0


def _totals(dump: Dump) -> Iterator[str]:
    live = sum(not job.state.final for job in dump.jobs.values())
    ended = sum(dump.ended.values())
    if dump.accepted != live + ended + dump.gone - dump.gone_ended:
        yield f"I6: accepted {dump.accepted} is not {live} live + {ended} ended, {dump.gone} are gone"
    # Who owned a job whose record is gone is only found when all lists have been read.
    open_jobs = dict(Counter(job.owner for job in dump.jobs.values() if job.owner and not job.state.final))
    if dump.open != open_jobs and dump.gone == dump.gone_ended:
        yield f"I6: {open_jobs} jobs of owners have not ended, {dump.open} were counted"
    planned = dict(Counter(job.owner for job in dump.jobs.values() if job.owner and _waits_for_its_start(job)))
    if dump.planned != planned:
        yield f"I6: {planned} jobs of owners wait for their start, {dump.planned} were counted"
    owners = {job.owner for job in dump.jobs.values() if job.owner}
    if dump.owners != owners and (owners - dump.owners or not dump.gone):
        yield f"I6: {owners} have jobs, {dump.owners} were noted"
    for state in filter(lambda state: state.final and not dump.collected and not dump.gone_ended, JobState):
        stored = sum(job.state is state for job in dump.jobs.values())
        if stored != dump.ended.get(state.value, 0):
            yield f"I6: {stored} jobs are {state}, {dump.ended.get(state.value, 0)} were counted"
    if dump.accepted != len(dump.jobs) + dump.collected + dump.gone:
        yield f"I6: accepted {dump.accepted} is not {len(dump.jobs)} stored + {dump.collected} collected + {dump.gone} gone"
