"""What running items said and the store has not heard yet. Pure: moments are passed in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.broker.records import Report
from penstock.job import JobId
from penstock.workers.ipc.frames import ItemReports
from penstock.workers.slot.batch import Batch

# The store hears of a slot's items at most this often.
_PACE_S = 0.02


@dataclass(frozen=True, slots=True)
class Said:
    """Reports that the store is owed, at most one per job."""

    reports: tuple[Report, ...]


class Reports:
    """One slot's. Of each job the latest progress stays. Empty `pending`: nothing is to be said, as nearly always."""

    def __init__(self) -> None:
        self.pending: dict[JobId, Report] = {}
        # When the store is to hear of them.
        self.due_at = float("-inf")

    def note(self, batch: Batch, said: ItemReports) -> None:
        for item in said.reports:
            job = batch.jobs[item.place]
            kept = self.pending.get(job.id) or Report(job.id, job.token)
            self.pending[job.id] = replace(kept, fraction=item.fraction, note=item.note)

    def take(self, now: float) -> Said:
        self.due_at = now + _PACE_S
        said, self.pending = Said(tuple(self.pending.values())), {}
        return said
