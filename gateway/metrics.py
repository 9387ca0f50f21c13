"""Prometheus figures of this process; queue gauges are computed from the store when scraped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.async_store import AsyncStore
from penstock.broker.records import QueueStats
from penstock.errors import Overloaded, PenstockError, StoreUnavailable
from penstock.gateway.admission import Capacity, DeadlineUnlikely
from penstock.gateway.registry import ModelEntry, Registry
from penstock.job import LATE_BAND, PUBLIC_STATES, JobState

HTTP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BANDS = {0: "interactive", LATE_BAND: "late", 9: "bulk"}
_REASONS = {
    "overloaded": "depth",
    "too_large": "size",
    "no_worker": "no_worker",
    "rate_limited": "quota",
    "quota_spent": "quota",
}
_METHODS = frozenset({"GET", "POST", "DELETE"})


# A second series per figure for the moment it was first counted: nobody asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Labels come from closed sets: route templates, known models, six states."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("route", "method", "status")
        self._requests = Counter("penstock_http_requests", "Requests answered", labels, registry=self.registry)
        self._durations = Histogram(
            "penstock_http_request_duration_seconds",
            "First byte of the request's head to the end of the answer",
            labels,
            buckets=HTTP_BUCKETS,
            registry=self.registry,
        )
        self._rejected = Counter("penstock_rejected", "Submits refused", ("model", "reason"), registry=self.registry)
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        try:
            counter, histogram = self._children[route, method, status]
        except KeyError:
            counter, histogram = self._bind(route, method, status)
        counter.inc()
        histogram.observe(seconds)

    def _bind(self, route: str, method: str, status: int) -> tuple[Counter, Histogram]:
        labels = (route, method if method in _METHODS else "other", str(status))
        children = self._requests.labels(*labels), self._durations.labels(*labels)
        if method in _METHODS:
            self._children[route, method, status] = children
        return children

    def refused(self, model: str, error: PenstockError) -> None:
        """Counts a refused submit; `model` must be a known one or `unknown`."""
        reason = "deadline" if isinstance(error, DeadlineUnlikely) else _REASONS.get(error.kind)
        if isinstance(error, Overloaded) and reason is None:
            reason = "depth"
        if reason is not None:
            self._rejected.labels(model, reason).inc()


class _QueueFigures(Collector):
    """One scrape's worth of queue figures, read beforehand because a collector cannot wait."""

    def __init__(self, seen: list[tuple[ModelEntry, QueueStats]], registry: Registry, now: float) -> None:
        self._seen = seen
        self._registry = registry
        self._now = now

    def collect(self) -> Iterator[Metric]:
        yield from self._depths()
        yield from self._totals()
        up = GaugeMetricFamily("penstock_worker_up", "Ready slots of a worker", labels=("model", "worker"))
        for worker in self._registry.workers:
            for model in sorted({slot.model for slot in worker.slots}):
                ready = sum(slot.state == "ready" for slot in worker.slots if slot.model == model)
                up.add_metric((model, worker.name), ready)
        yield up

    def _depths(self) -> Iterable[Metric]:
        labels = ("model", "priority")
        depth = GaugeMetricFamily("penstock_queue_depth", "Jobs waiting", labels=labels)
        oldest = GaugeMetricFamily("penstock_queue_oldest_age_seconds", "Age of the oldest waiting job", labels=labels)
        backlog = GaugeMetricFamily("penstock_queue_backlog_seconds", "Predicted time to drain", labels=labels)
        in_flight = GaugeMetricFamily("penstock_jobs_in_flight", "Jobs leased to workers", labels=("model",))
        for entry, stats in self._seen:
            rate = entry.backlog.rate(_total_capacity(entry), self._now)
            for band, priority in BANDS.items():
                waiting = stats.ready.get(band, 0) + (stats.solo if band == 0 else 0)
                depth.add_metric((entry.name, priority), waiting)
                oldest.add_metric((entry.name, priority), stats.oldest_age_s.get(band, 0.0))
                if rate:
                    backlog.add_metric((entry.name, priority), waiting / rate)
            in_flight.add_metric((entry.name,), stats.leased)
        return (depth, oldest, backlog, in_flight)

    def _totals(self) -> Iterable[Metric]:
        jobs = CounterMetricFamily(
            "penstock_jobs", "Jobs ended, by state, as the store counts them", labels=("model", "status")
        )
        redelivered = CounterMetricFamily("penstock_redelivered", "Jobs given out again", labels=("model", "reason"))
        for entry, stats in self._seen:
            for status, count in _by_status(stats).items():
                jobs.add_metric((entry.name, status), count)
            redelivered.add_metric((entry.name, "lease"), stats.counters.get("redelivered", 0))
        return (jobs, redelivered)


def _by_status(stats: QueueStats) -> dict[str, int]:
    """Counts by the status that callers see, in which a given-up job has failed."""
    counts = dict.fromkeys(PUBLIC_STATES[2:], 0)
    for state, count in stats.ended.items():
        counts[JobState(state).public] += count
    return counts


def _total_capacity(entry: ModelEntry) -> Capacity:
    return Capacity(per_s=sum(version.capacity.per_s for version in entry.versions.values()))


async def scrape(metrics: Metrics, store: AsyncStore, registry: Registry) -> bytes:
    """The text of one scrape; without the queue figures while the store is away."""
    seen: list[tuple[ModelEntry, QueueStats]] = []
    try:
        entries = list(registry.models.values())
        stats = await asyncio.gather(*(store.stats(entry.name) for entry in entries))
        seen = list(zip(entries, stats, strict=True))
    except StoreUnavailable:
        seen = []
    at_scrape = CollectorRegistry()
    at_scrape.register(_QueueFigures(seen, registry, time.monotonic()))
    return generate_latest(metrics.registry) + generate_latest(at_scrape)
