"""The rows of the overview: one per model, with its state and its urgency. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.gateway.dashboard.rows.series import QueueSamples, Spark, spark
from penstock.gateway.models.queues import QueueView
from penstock.gateway.models.registry import ModelEntry
from penstock.gateway.models.slots import NOT_LOADED, PAUSED, SCALED_TO_NONE, STILL_LOADING, UNLOADED, slots_of, why_unserved
from penstock.model_spec import WorkerInfo

# If the oldest job waits longer than this, the queue is marked. Bulk jobs may wait longer.
LATE_S = 30.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a queue. `tone` is good, warn, bad or idle."""

    tone: str
    word: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One model. `bands` are the priorities that have waiting jobs. Rates are None before the second poll. `slots`: the
    wanted number over all workers.
    """

    model: str
    status: Status
    depth: int
    bands: tuple[tuple[str, int], ...]
    oldest_age_s: float
    backlog_s: float | None
    accepted_per_s: float | None
    ended_per_s: float | None
    in_flight: int
    delayed: int
    ready_slots: int
    slots: int
    inbox: int
    accepted: int
    spark: Spark | None


@dataclass(frozen=True, slots=True)
class Totals:
    depth: int = 0
    in_flight: int = 0
    ended_per_s: float | None = None
    ready_slots: int = 0
    slots: int = 0
    inbox: int = 0
    accepted: int = 0


def queue_rows(
    queues: Iterable[QueueView],
    entries: Mapping[str, ModelEntry],
    samples: Mapping[str, QueueSamples],
    workers: Sequence[WorkerInfo],
) -> list[QueueRow]:
    """Models that need attention first, then by name."""
    rows = [_row(queue, entries[queue.model], samples.get(queue.model, QueueSamples()), workers) for queue in queues]
    return sorted(rows, key=lambda row: (row.status.tone != "bad", row.model))


def _row(queue: QueueView, entry: ModelEntry, samples: QueueSamples, workers: Sequence[WorkerInfo]) -> QueueRow:
    rates = samples.rates()
    return QueueRow(
        model=queue.model,
        status=status_of(queue, entry, workers),
        depth=queue.depth,
        bands=tuple((name, band.depth) for name, band in queue.bands.items() if band.depth),
        oldest_age_s=queue.oldest_age_s,
        backlog_s=queue.backlog_s,
        accepted_per_s=rates[0] if rates else None,
        ended_per_s=rates[1] if rates else None,
        in_flight=queue.stats.leased,
        delayed=queue.stats.delayed,
        ready_slots=queue.ready_slots,
        slots=sum(slots_of(workers, entry.name, version).wanted for version in entry.versions),
        inbox=queue.stats.inbox,
        accepted=queue.stats.accepted,
        spark=spark(samples.line()),
    )


def status_of(queue: QueueView, entry: ModelEntry, workers: Sequence[WorkerInfo]) -> Status:
    if queue.is_paused:
        return Status("warn" if queue.depth else "idle", "paused", PAUSED)
    if not queue.ready_slots:
        return _unserved(why_unserved(workers, entry.name, entry.default), waiting=bool(queue.depth))
    urgent_s = max((band.oldest_age_s for name, band in queue.bands.items() if name != "bulk"), default=0.0)
    if urgent_s > LATE_S:
        return Status("warn", "behind", "the oldest interactive job has waited longer than half a minute")
    return Status("good", "running") if queue.stats.leased or queue.depth else Status("idle", "idle")


def _unserved(why: str, *, waiting: bool) -> Status:
    if why == STILL_LOADING:
        return Status("warn", "loading", why)
    if why == SCALED_TO_NONE:
        return Status("warn" if waiting else "idle", "off", f"{why}; `penstock models scale` starts some")
    if why.startswith(UNLOADED):
        return Status("warn" if waiting else "idle", "unloaded", why)
    word = "cannot load" if why.startswith(NOT_LOADED) else "no worker"
    return Status("bad" if waiting or word == "cannot load" else "warn", word, why)


def totals(rows: Sequence[QueueRow]) -> Totals:
    rates = [row.ended_per_s for row in rows if row.ended_per_s is not None]
    return Totals(
        depth=sum(row.depth for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        ended_per_s=sum(rates) if rates else None,
        ready_slots=sum(row.ready_slots for row in rows),
        slots=sum(row.slots for row in rows),
        inbox=sum(row.inbox for row in rows),
        accepted=sum(row.accepted for row in rows),
    )
