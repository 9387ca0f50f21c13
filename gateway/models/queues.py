"""The queues of all models now: depth, age, time until empty. One round trip to the store reads all of them.

/metrics and `/v1/queues` show the same numbers, since both read them here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from penstock.broker.backlog import WANTED_S, SlotCapacity
from penstock.broker.partitions import all_unfinished, queues_of_model, total
from penstock.broker.records import QueueStats, Unfinished
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.models.registry import ModelEntry, ModelRegistry
from penstock.job import LATE_BAND
from penstock.model_spec import ModelInfo

# The minimum of any work, so that rounding never removes the last worker.
LEAST_WORK_S = 1.0
MOST_PATTERNS = 100
_WILD = frozenset("*?[")
BANDS = {0: "interactive", LATE_BAND: "late", 9: "bulk"}


@dataclass(frozen=True, slots=True)
class Band:
    """The waiting jobs of one priority. `backlog_s` None: jobs wait, and no rate is known."""

    depth: int
    oldest_age_s: float
    backlog_s: float | None


@dataclass(frozen=True, slots=True)
class QueueView:
    """One model's queue. `rate` is jobs per second, 0 if not known; `bands` are by name of the priority. `work_s`: the time
    that one worker process would need for all waiting, due and running jobs. `is_unloaded`: its next job starts a slot.
    `is_paused`: no worker takes its jobs.
    """

    model: str
    stats: QueueStats
    ready_slots: int
    rate: float
    bands: dict[str, Band]
    work_s: float = 0.0
    wanted_slots: int = 0
    is_unloaded: bool = False
    is_paused: bool = False

    @property
    def depth(self) -> int:
        return self.stats.depth

    @property
    def oldest_age_s(self) -> float:
        return max(band.oldest_age_s for band in self.bands.values())

    @property
    def backlog_s(self) -> float | None:
        return _drain_s(self.depth, self.rate)


def queue_of(entry: ModelEntry, stats: QueueStats, now: float, *, refused_at: float = 0.0) -> QueueView:
    """`now` is monotonic, `refused_at` by the store's clock. Suspects run before all others and count as interactive."""
    capacities = [version.capacity for version in entry.versions.values()]
    full_per_s = sum(capacity.full_per_s for capacity in capacities)
    total = SlotCapacity(entry.ready_slots, sum(capacity.per_s for capacity in capacities), full_per_s=full_per_s)
    rate = entry.backlog.rate(total, now)
    bands = {}
    for band, name in BANDS.items():
        waiting = stats.ready.get(band, 0) + (stats.solo if band == 0 else 0)
        bands[name] = Band(waiting, stats.oldest_age_s.get(band, 0.0), _drain_s(waiting, rate))
    is_wanted = stats.now - refused_at <= WANTED_S
    # More workers would not help a paused model, except for the jobs that still run.
    there = replace(stats, ready={}, solo=0, due=0) if entry.is_paused else stats
    work_s = _work_s(there, rate / max(1, entry.workers) or full_per_s, is_wanted=is_wanted and not entry.is_paused)
    is_unloaded = entry.default.capacity.on_demand and not entry.wanted_slots
    return QueueView(
        entry.name,
        stats,
        entry.ready_slots,
        rate,
        bands,
        work_s,
        entry.wanted_slots,
        is_unloaded,
        entry.is_paused,
    )


def _work_s(stats: QueueStats, per_s: float, *, is_wanted: bool) -> float:
    """`per_s`: jobs that one worker ends per second, 0 if not known.

    A single job, or one refused caller, is enough for a scaler to start one worker. If the time of jobs is unknown, one
    worker is enough to measure it.
    """
    jobs = stats.depth + stats.due + stats.leased
    if not jobs:
        return LEAST_WORK_S if is_wanted else 0.0
    return max(LEAST_WORK_S, jobs / per_s) if per_s else LEAST_WORK_S


def _drain_s(waiting: int, rate: float) -> float | None:
    """Seconds until `waiting` jobs have run; None if no rate is known."""
    if not waiting:
        return 0.0
    return waiting / rate if rate else None


async def read_queues(store: AsyncStore, entries: Sequence[ModelEntry]) -> list[QueueView]:
    """The queue of each model. Raises `StoreUnavailable` if one of them cannot be read."""
    stats = await store.stats_of([queue for entry in entries for queue in queues_of_model(entry.info)])
    return _views(entries, stats, await store.refused())


def _views(entries: Sequence[ModelEntry], stats: Sequence[QueueStats], refused: Mapping[str, float]) -> list[QueueView]:
    """`stats`: one per queue of each model, in the order of `entries`."""
    now, parts, views = time.monotonic(), iter(stats), []
    for entry in entries:
        own = total([next(parts) for _ in queues_of_model(entry.info)])
        views.append(queue_of(entry, own, now, refused_at=refused.get(entry.name, 0.0)))
    return views


async def stats_of_model(store: AsyncStore, entry: ModelEntry) -> QueueStats:
    """Over all partitions. Raises `StoreUnavailable`."""
    return total(await store.stats_of(queues_of_model(entry.info)))


async def unfinished_of(store: AsyncStore, registry: ModelRegistry, model: str, version: str) -> Unfinished:
    """Over all partitions of a model, even if no worker serves it. Raises `StoreUnavailable`."""
    info = registry.stored(model).info or ModelInfo(model)
    return all_unfinished(await asyncio.gather(*(store.unfinished(queue, version) for queue in queues_of_model(info))))


class QueueReads:
    """GET /v1/queues[/{model}], for people, and for scalers of workers that read JSON."""

    def __init__(self, store: AsyncStore, *, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["queues"])
        router.add_api_route("/v1/queues", self.queues, methods=["GET"], summary="Every model's queue", name="queues")
        router.add_api_route(
            "/v1/scaling", self.scaling, methods=["GET"], summary="Work for a group of workers", name="scaling"
        )
        router.add_api_route("/v1/queues/{model}", self.queue, methods=["GET"], summary="One model's queue", name="queue")
        return router

    async def queues(self) -> Response:
        queues = await read_queues(self._store, list(self._registry.models.values()))
        return json_response({"data": [queue_view(queue) for queue in queues]})

    async def queue(self, model: str) -> Response:
        entry, _ = await self._registry.find(model)
        [queue] = await read_queues(self._store, [entry])
        return json_response(queue_view(queue))

    async def scaling(self, model: Annotated[list[str] | None, Query(max_length=MOST_PATTERNS)] = None) -> Response:
        """The work of the models with these names or patterns such as `text-*`; without names, of all models."""
        entries = await self._named(model or ["*"])
        queues = await read_queues(self._store, entries)
        return json_response({"work_s": sum(queue.work_s for queue in queues), "data": [work_view(queue) for queue in queues]})

    async def _named(self, patterns: Sequence[str]) -> list[ModelEntry]:
        """Raises `UnknownModel` for an unknown name: a scaler must not read 0 because of a typing error."""
        entries: dict[str, ModelEntry] = {}
        for pattern in patterns:
            if _WILD.isdisjoint(pattern):
                entry, _ = await self._registry.find(pattern)
                entries[entry.name] = entry
            else:
                entries |= {name: entry for name, entry in self._registry.models.items() if fnmatchcase(name, pattern)}
        return list(entries.values())


def work_view(queue: QueueView) -> dict[str, Any]:
    return {
        "model": queue.model,
        "work_s": queue.work_s,
        "depth": queue.depth,
        "due": queue.stats.due,
        "in_flight": queue.stats.leased,
        "ready_slots": queue.ready_slots,
    }


def queue_view(queue: QueueView) -> dict[str, Any]:
    """Every field is always present, `null` if unknown, because scalers fail on missing fields."""
    return {
        "model": queue.model,
        "depth": queue.depth,
        "oldest_age_s": queue.oldest_age_s,
        "backlog_s": queue.backlog_s,
        "in_flight": queue.stats.leased,
        "delayed": queue.stats.delayed,
        "ready_slots": queue.ready_slots,
        "wanted_slots": queue.wanted_slots,
        "unloaded": queue.is_unloaded,
        "paused": queue.is_paused,
        "rate_per_s": queue.rate or None,
        "priorities": {
            name: {"depth": band.depth, "oldest_age_s": band.oldest_age_s, "backlog_s": band.backlog_s}
            for name, band in queue.bands.items()
        },
    }
