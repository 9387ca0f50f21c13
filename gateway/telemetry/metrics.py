"""Prometheus figures of one gateway: what this process counts, and the queues as they are when it is scraped.

Every name with its meaning stands in docs/metrics.md, and a test compares the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

import penstock
from penstock.broker.server.health import StoreHealth
from penstock.broker.store.aio import AsyncStore
from penstock.errors import DeadlineUnlikely, Overloaded, PenstockError, StoreUnavailable
from penstock.gateway.models.queues import QueueView, read_queues
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.telemetry.queue_metrics import StoreFigures
from penstock.gateway.telemetry.store_metrics import Deadlines, HealthFigures
from penstock.gateway.telemetry.torchserve_counters import TorchServeFigures

HTTP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Routes with a histogram of their own: those that carry jobs. All others share one, so that a scrape stays small.
TIMED = frozenset(
    {
        "/predictions/{model}",
        "/predictions/{model}/{version}",
        "/v1/models/{model}/jobs",
        "/v1/models/{model}/versions/{version}/jobs",
        "/v1/jobs/{job_id}",
        "/v1/jobs/{job_id}/result",
        "/v1/jobs/{job_id}/events",
    }
)
OTHER = "other"
_REASONS = {
    "overloaded": "depth",
    "too_large": "size",
    "no_worker": "no_worker",
    "rate_limited": "quota",
    "quota_spent": "quota",
}
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})


# A second series per figure for the moment it was first counted: nobody asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class GatewayMetrics:
    """Labels come from closed sets: route templates, known models, six states. `open_requests`: how many are being answered."""

    def __init__(self, *, open_requests: Callable[[], int] = lambda: 0, torchserve: bool = False) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "penstock_http_requests", "Requests answered", ("route", "method", "status"), registry=registry
        )
        self._durations = Histogram(
            "penstock_http_request_duration_seconds",
            "First byte of the request's head to the end of the answer",
            ("route",),
            buckets=HTTP_BUCKETS,
            registry=registry,
        )
        self._rejected = Counter("penstock_rejected", "Submits refused", ("model", "reason"), registry=registry)
        in_flight = Gauge("penstock_http_requests_in_flight", "Requests being answered", registry=registry)
        in_flight.set_function(open_requests)
        self.torchserve = TorchServeFigures() if torchserve else None
        if self.torchserve is not None:
            registry.register(self.torchserve)
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        try:
            counter, histogram = self._children[route, method, status]
        except KeyError:
            counter, histogram = self._bind(route, method, status)
        counter.inc()
        histogram.observe(seconds)

    def _bind(self, route: str, method: str, status: int) -> tuple[Counter, Histogram]:
        labels = (route, method if method in _METHODS else OTHER, str(status))
        children = self._requests.labels(*labels), self._durations.labels(route if route in TIMED else OTHER)
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


class _Process(Collector):
    """What this process counts elsewhere, and which version it runs where that may be told."""

    def __init__(self, store: AsyncStore, *, private: bool) -> None:
        self._store = store
        self._private = private

    def collect(self) -> Iterator[Metric]:
        errors = CounterMetricFamily("penstock_store_errors", "Calls that the store did not answer", labels=("part",))
        errors.add_metric(("gateway",), self._store.errors)
        yield errors
        if self._private:
            build = Metric("penstock_build_info", "Always 1; the version runs here", "gauge")
            build.add_sample("penstock_build_info", {"version": penstock.__version__}, 1)
            yield build


async def scrape(
    metrics: GatewayMetrics, store: AsyncStore, registry: ModelRegistry, *, private: bool, blob_dir: Path | None = None
) -> bytes:
    """The text of one scrape; without the queues while the store is away. `private`: nobody but the operator reads it."""
    queues, health = await _read(store, registry)
    at_scrape = CollectorRegistry()
    at_scrape.register(_Process(store, private=private))
    at_scrape.register(StoreFigures(queues, workers=len(registry.workers)))
    at_scrape.register(HealthFigures(health, blob_dir=blob_dir))
    at_scrape.register(Deadlines(registry.models.values()))
    # In a thread: the text for many models takes tens of milliseconds, in which others want to be answered.
    return await asyncio.to_thread(lambda: generate_latest(metrics.registry) + generate_latest(at_scrape))


async def _read(store: AsyncStore, registry: ModelRegistry) -> tuple[list[QueueView] | None, StoreHealth | None]:
    """The queues and their server, or nothing at all: half of a store that went away meanwhile would mislead."""
    try:
        return await read_queues(store, list(registry.models.values())), await store.health()
    except StoreUnavailable:
        return None, None
