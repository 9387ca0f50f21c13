"""What one gateway process counts, as Prometheus metrics. `scrape.py` adds the queues and the store."""

from __future__ import annotations

import socket
from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.errors import DeadlineUnlikely, Overloaded, PenstockError

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
_TS_LABELS = ("model_name", "model_version", "hostname")
# TorchServe's names of the two sums lack the ending that Prometheus asks of counters, so they have no declared type.
_UNTYPED = "unknown"
UNVERSIONED = "default"

# By default each counter has a second series with the time of its creation, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]


class GatewayMetrics:
    """Labels come from closed sets: route templates, known models, six states. `open_requests` counts those being answered."""

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
        self._deliveries = Counter(
            "penstock_webhook_deliveries", "Attempts to deliver events to webhooks", ("result",), registry=registry
        )
        in_flight = Gauge("penstock_http_requests_in_flight", "Requests being answered", registry=registry)
        in_flight.set_function(open_requests)
        self.torchserve = TorchServeCounters() if torchserve else None
        if self.torchserve is not None:
            registry.register(self.torchserve)
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count_answer(self, route: str, method: str, status: int, seconds: float) -> None:
        try:
            counter, histogram = self._children[route, method, status]
        except KeyError:
            counter, histogram = self._bind(route, method, status)
        counter.inc()
        histogram.observe(seconds)

    def count_delivery(self, result: str) -> None:
        """`result`: delivered, retried, gone, undelivered or stale. Safe to call from another thread."""
        self._deliveries.labels(result).inc()

    def _bind(self, route: str, method: str, status: int) -> tuple[Counter, Histogram]:
        labels = (route, method if method in _METHODS else OTHER, str(status))
        children = self._requests.labels(*labels), self._durations.labels(route if route in TIMED else OTHER)
        if method in _METHODS:
            self._children[route, method, status] = children
        return children

    def count_refusal(self, model: str, error: PenstockError) -> None:
        """Counts a refused submit. `model` must be a known model or `unknown`."""
        reason = "deadline" if isinstance(error, DeadlineUnlikely) else _REASONS.get(error.kind)
        if isinstance(error, Overloaded) and reason is None:
            reason = "depth"
        if reason is not None:
            self._rejected.labels(model, reason).inc()


class GrpcMetrics:
    """What the gRPC port counts. Labels come from closed sets: the methods that are served, gRPC's statuses."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter("penstock_grpc_requests", "gRPC calls answered", ("method", "code"), registry=registry)
        self._durations = Histogram(
            "penstock_grpc_request_duration_seconds",
            "Begin of the gRPC call to its end",
            ("method",),
            buckets=HTTP_BUCKETS,
            registry=registry,
        )
        self._in_flight = Gauge("penstock_grpc_requests_in_flight", "gRPC calls being answered", registry=registry)
        self._children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def begin(self) -> None:
        self._in_flight.inc()

    def count(self, method: str, code: str, seconds: float) -> None:
        """Counts the end of a call that has begun."""
        key = (method, code)
        if key not in self._children:
            self._children[key] = self._requests.labels(method, code), self._durations.labels(method)
        counter, histogram = self._children[key]
        self._in_flight.dec()
        counter.inc()
        histogram.observe(seconds)


class TorchServeCounters(Collector):
    """Counters under TorchServe's names, for dashboards made for it: predictions by model and requested version.

    As in TorchServe, the sums include answered requests only.
    """

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._requests: Tally[tuple[str, str]] = Tally()
        self._total_us: Tally[tuple[str, str]] = Tally()
        self._queue_us: Tally[tuple[str, str]] = Tally()

    def count_request(self, model: str, version: str) -> None:
        self._requests[model, version or UNVERSIONED] += 1

    def count_answer(self, model: str, version: str, *, total_s: float, queue_s: float) -> None:
        """`queue_s` is the part of `total_s` outside of the model's stages."""
        self._total_us[model, version or UNVERSIONED] += round(total_s * 1e6)
        self._queue_us[model, version or UNVERSIONED] += round(queue_s * 1e6)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("ts_inference_requests", "Total number of inference requests.", labels=_TS_LABELS)
        for (model, version), count in list(self._requests.items()):
            requests.add_metric((model, version, self._host), count)
        yield requests
        yield self._sums("ts_inference_latency_microseconds", "Cumulative inference duration in microseconds.", self._total_us)
        yield self._sums("ts_queue_latency_microseconds", "Cumulative queue duration in microseconds.", self._queue_us)

    def _sums(self, name: str, text: str, sums: Tally[tuple[str, str]]) -> Metric:
        family = Metric(name, text, _UNTYPED)
        for (model, version), total in list(sums.items()):
            family.add_sample(name, dict(zip(_TS_LABELS, (model, version, self._host), strict=True)), total)
        return family
