"""Reports of running items that the store has not received yet. Pure: moments are passed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.records import ClaimedJob, Report
from penstock.job import JobId
from penstock.workers.ipc.frames import ItemReport, ItemReports
from penstock.workers.slot.batch import Batch

# A slot sends the reports of its items to the store at most this often.
_PACE_S = 0.02
# While this much waits for the store, the slot does not read from the child, so the child's generators wait.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Said:
    """Reports that the slot owes the store, at most one per job, and all of jobs of one queue."""

    reports: tuple[Report, ...]

    @property
    def queue(self) -> str:
        return self.reports[0].id.queue


@dataclass(slots=True)
class _Unsaid:
    """What one job said since the last report. `before`: how many chunks of this stream were reported before."""

    job: ClaimedJob
    fraction: float | None = None
    note: str = ""
    restarts: int = 0
    before: int = 0
    chunks: list[bytes] = field(default_factory=list)

    def add(self, item: ItemReport) -> None:
        if item.fraction is not None:
            self.fraction, self.note = item.fraction, item.note
        if item.restarts != self.restarts:
            self.restarts, self.before, self.chunks = item.restarts, 0, []
        self.chunks += item.chunks

    def report(self) -> Report:
        chunks = tuple(self.chunks)
        return Report(self.job.id, self.job.token, self.fraction, self.note, self.restarts, self.before, chunks)

    def rest(self) -> _Unsaid:
        """The same once it was reported."""
        return _Unsaid(self.job, restarts=self.restarts, before=self.before + len(self.chunks))


# One attempt at a job. A slot that lost a job may get it back while its child still runs the attempt that was lost.
AttemptKey = tuple[JobId, str]


class Reports:
    """One slot's. Of each job's attempt, by its token, the latest progress stays, and all of its chunks.

    Empty `pending`: there is nothing to report. Empty `said`: no item of a running batch has reported anything.
    """

    def __init__(self) -> None:
        self.pending: dict[AttemptKey, _Unsaid] = {}
        self.said: dict[AttemptKey, _Unsaid] = {}
        self._bytes = 0
        # So much is pending that the slot should not read from the child.
        self.is_full = False
        # When to send them to the store.
        self.due_at = float("-inf")

    def note(self, batch: Batch, said: ItemReports) -> None:
        for item in said.reports:
            job = batch.jobs[item.place]
            key = job.id, job.token
            known = self.pending.get(key)
            if known is None:
                known = self.pending[key] = self.said.pop(key) if key in self.said else _Unsaid(job)
            known.add(item)
            self._bytes += sum(map(len, item.chunks))
        self.is_full = self._bytes >= _MOST_BYTES

    def close(self, batch: Batch) -> None:
        """The batch is over: an empty report for each of its streams asks whether the store still has all chunks."""
        for job in batch.jobs:
            key = job.id, job.token
            if key in self.said and self.said[key].before and key not in self.pending:
                self.pending[key] = self.said.pop(key)

    def take(self, now: float) -> list[Said]:
        """What is pending, by queue."""
        self.due_at, self._bytes, self.is_full = now + _PACE_S, 0, False
        taken, self.pending = self.pending, {}
        self.said |= {key: one.rest() for key, one in taken.items()}
        by_queue: dict[str, list[Report]] = {}
        for one in taken.values():
            by_queue.setdefault(one.job.id.queue, []).append(one.report())
        return [Said(tuple(reports)) for reports in by_queue.values()]

    def forget(self, batch: Batch) -> None:
        """The batch is over, and its reports were taken."""
        for job in batch.jobs:
            self.said.pop((job.id, job.token), None)
