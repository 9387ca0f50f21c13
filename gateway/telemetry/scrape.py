"""The text of one scrape: this process's counters, and the current queues and store.

docs/reference/metrics.md lists every metric and its meaning; a test compares the two.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import penstock
from penstock.broker.records import QueueStats
from penstock.broker.server.health import StoreHealth
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.links.refusals import asked_again
from penstock.errors import StoreUnavailable
from penstock.gateway.models.queues import QueueView, read_queues
from penstock.gateway.models.registry import ModelEntry, ModelRegistry
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.job import PUBLIC_STATES, JobState

_REDELIVERED = ("crashed", "given_back", "reading", "worker_lost")


async def scrape(
    metrics: GatewayMetrics,
    store: AsyncStore,
    registry: ModelRegistry,
    *,
    private: bool,
    blob_dir: Path | None = None,
) -> bytes:
    """The text of one scrape; without the queues if the store is unreachable. `private`: only the operator reads it."""
    queues, health = await _read(store, registry)
    at_scrape = CollectorRegistry()
    at_scrape.register(ProcessFigures(store, private=private))
    at_scrape.register(StoreFigures(queues, workers=len(registry.workers)))
    at_scrape.register(HealthFigures(health, blob_dir=blob_dir))
    at_scrape.register(DeadlineFigures(registry.models.values()))
    # In a thread: the text for many models takes tens of milliseconds, and other requests must not wait for it.
    return await asyncio.to_thread(lambda: generate_latest(metrics.registry) + generate_latest(at_scrape))


Read = tuple[list[QueueView] | None, StoreHealth | None]


async def _read(store: AsyncStore, registry: ModelRegistry) -> Read:
    """The queues and the store's server."""
    try:
        return await read_queues(store, list(registry.models.values())), await store.health()
    except StoreUnavailable:
        # If the store fails between the two reads, half of the figures would mislead.
        return None, None


class ProcessFigures(Collector):
    """The store errors of this process and, in a private scrape, the version that it runs."""

    def __init__(self, store: AsyncStore, *, private: bool) -> None:
        self._store = store
        self._private = private

    def collect(self) -> Iterator[Metric]:
        errors = CounterMetricFamily("penstock_store_errors", "Calls that the store did not answer", labels=("part",))
        errors.add_metric(("gateway",), self._store.errors)
        yield errors
        again = CounterMetricFamily("penstock_store_asked_again", "Calls that the store did not take at once", labels=("code",))
        for code, count in asked_again.items():
            again.add_metric((code,), count)
        yield again
        if self._private:
            build = Metric("penstock_build_info", "Always 1; the label names the running version", "gauge")
            build.add_sample("penstock_build_info", {"version": penstock.__version__}, 1)
            yield build


class StoreFigures(Collector):
    """The queues, read beforehand because a collector cannot await. `queues` None: the store could not be read."""

    def __init__(self, queues: Sequence[QueueView] | None, *, workers: int) -> None:
        self._up = queues is not None
        self._queues = queues or ()
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("penstock_store_up", "Whether the store could be read for this scrape", value=float(self._up))
        yield GaugeMetricFamily("penstock_workers", "Worker processes that announce themselves", value=self._workers)
        yield from self._by_priority()
        yield from self._current()
        yield from self._ends()
        yield from self._detours()

    def _by_priority(self) -> Iterator[Metric]:
        labels = ("model", "priority")
        depth = GaugeMetricFamily("penstock_queue_depth", "Jobs waiting", labels=labels)
        oldest = GaugeMetricFamily("penstock_queue_oldest_age_seconds", "Age of the oldest waiting job", labels=labels)
        backlog = GaugeMetricFamily("penstock_queue_backlog_seconds", "Predicted time to drain", labels=labels)
        for queue in self._queues:
            for priority, band in queue.bands.items():
                depth.add_metric((queue.model, priority), band.depth)
                oldest.add_metric((queue.model, priority), band.oldest_age_s)
                if band.backlog_s is not None:
                    backlog.add_metric((queue.model, priority), band.backlog_s)
        yield from (depth, oldest, backlog)

    def _current(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily("penstock_jobs_in_flight", "Jobs leased to workers", labels=("model",))
        delayed = GaugeMetricFamily("penstock_jobs_delayed", "Jobs that wait for a retry or for their start", labels=("model",))
        slots = GaugeMetricFamily("penstock_slots_ready", "Ready slots over all workers", labels=("model",))
        work = GaugeMetricFamily(
            "penstock_queue_work_seconds", "Work for one worker in all that waits or runs", labels=("model",)
        )
        wanted = GaugeMetricFamily("penstock_slots_wanted", "Slots that there are to be, over all workers", labels=("model",))
        unloaded = GaugeMetricFamily("penstock_model_unloaded", "Whether the next job has the model loaded", labels=("model",))
        paused = GaugeMetricFamily("penstock_model_paused", "Whether an operator paused the model", labels=("model",))
        for queue in self._queues:
            paused.add_metric((queue.model,), queue.is_paused)
            wanted.add_metric((queue.model,), queue.wanted_slots)
            unloaded.add_metric((queue.model,), queue.is_unloaded)
            in_flight.add_metric((queue.model,), queue.stats.leased)
            delayed.add_metric((queue.model,), queue.stats.delayed)
            slots.add_metric((queue.model,), queue.ready_slots)
            work.add_metric((queue.model,), queue.work_s)
        yield from (in_flight, delayed, slots, work, wanted, unloaded, paused)

    def _ends(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily("penstock_jobs_accepted", "Jobs stored", labels=("model",))
        jobs = CounterMetricFamily("penstock_jobs", "Jobs ended, by state", labels=("model", "status"))
        dead = CounterMetricFamily("penstock_jobs_dead", "Jobs given up, also counted as failed", labels=("model",))
        for queue in self._queues:
            accepted.add_metric((queue.model,), queue.stats.accepted)
            dead.add_metric((queue.model,), queue.stats.ended.get(JobState.DEAD, 0))
            for status, count in _by_status(queue.stats).items():
                jobs.add_metric((queue.model, status), count)
        yield from (accepted, jobs, dead)

    def _detours(self) -> Iterator[Metric]:
        retried = CounterMetricFamily("penstock_retried", "Runs to be repeated after a delay", labels=("model",))
        stale = CounterMetricFamily("penstock_settled_stale", "Outcomes that came after the lease was lost", labels=("model",))
        again = CounterMetricFamily(
            "penstock_redelivered", "Leased jobs that went back into the queue", labels=("model", "reason")
        )
        for queue in self._queues:
            counters = queue.stats.counters
            retried.add_metric((queue.model,), counters.get("retried", 0))
            stale.add_metric((queue.model,), counters.get("stale", 0))
            for reason in _REDELIVERED:
                again.add_metric((queue.model, reason), counters.get(f"redelivered:{reason}", 0))
        yield from (retried, stale, again)


def _by_status(stats: QueueStats) -> dict[str, int]:
    """Counts by the public status, in which a dead job is a failed one."""
    counts = dict.fromkeys(PUBLIC_STATES[2:], 0)
    for state, count in stats.ended.items():
        counts[JobState(state).public] += count
    return counts


class HealthFigures(Collector):
    """The store's server and the disk of the blobs. `health` None: the store cannot be reached, or its user may not ask."""

    def __init__(self, health: StoreHealth | None, *, blob_dir: Path | None) -> None:
        self._health = health
        self._blob_dir = blob_dir

    def collect(self) -> Iterator[Metric]:
        if self._health is not None:
            yield from _of_server(self._health)
        if self._blob_dir is not None:
            yield from _of_disk(self._blob_dir)


def _of_server(health: StoreHealth) -> Iterator[Metric]:
    used, limit, logged = health.memory_used_bytes, health.memory_limit_bytes, health.log_bytes
    yield GaugeMetricFamily("penstock_store_memory_used_bytes", "Memory of the store's server", value=used)
    yield GaugeMetricFamily("penstock_store_memory_limit_bytes", "Memory limit of the store's server", value=limit)
    yield GaugeMetricFamily("penstock_store_log_bytes", "Size of the store's append-only file", value=logged)
    is_well = float(health.persistence_ok)
    yield GaugeMetricFamily("penstock_store_persistence_ok", "Whether the store's last writes to disk succeeded", value=is_well)


def _of_disk(folder: Path) -> Iterator[Metric]:
    # The first large payload creates the folder. Until then its nearest parent is on the same disk.
    nearest = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if nearest is None:
        return
    usage = shutil.disk_usage(nearest)
    yield GaugeMetricFamily("penstock_blob_disk_free_bytes", "Free on the disk of large payloads", value=usage.free)
    yield GaugeMetricFamily("penstock_blob_disk_size_bytes", "Size of the disk of large payloads", value=usage.total)


class DeadlineFigures(Collector):
    """The default deadline of a model's jobs, for comparison with the age of its queue."""

    def __init__(self, entries: Iterable[ModelEntry]) -> None:
        self._entries = entries

    def collect(self) -> Iterator[Metric]:
        deadlines = GaugeMetricFamily("penstock_model_deadline_seconds", "Default deadline", labels=("model", "priority"))
        for entry in self._entries:
            deadlines.add_metric((entry.name, "interactive"), entry.info.limits.deadline_s)
            deadlines.add_metric((entry.name, "bulk"), entry.info.limits.bulk_deadline_s)
        yield deadlines
