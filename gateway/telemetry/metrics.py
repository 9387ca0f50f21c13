"""What one gateway process counts, as Prometheus metrics. `scrape.py` adds the queues and the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from penstock.errors import DeadlineUnlikely, Overloaded, PenstockError
from penstock.job import BatchRecord

HTTP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Routes with their own histogram: those that carry jobs. All others share one, so that a scrape stays small.
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

# By default each counter has a second series with the time of its creation, which is not needed.
disable_created_metrics()  # type: ignore[no-untyped-call]


class PredictionCounts(Protocol):
    """Counts predictions by model and by the version that was asked for."""

    def count_request(self, model: str, version: str) -> None: ...

    def count_answer(self, model: str, version: str, batch: BatchRecord | None, total_s: float) -> None: ...


class AnswerLog(Protocol):
    """Gets each answer, with the scope of its request."""

    def log(self, scope: dict[str, Any], status: int, seconds: float) -> None: ...


class GatewayMetrics:
    """Labels come from closed sets: route templates, known models, six states. `open_requests` counts those being answered.

    `predictions` counts predictions under other names too, and `answers`, set later, logs each answer; None: off.
    """

    def __init__(self, *, open_requests: Callable[[], int] = lambda: 0, predictions: PredictionCounts | None = None) -> None:
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
        self.predictions = predictions
        self.answers: AnswerLog | None = None
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count_answer(self, route: str, method: str, status: int, seconds: float) -> None:
        try:
            counter, histogram = self._children[route, method, status]
        except KeyError:
            counter, histogram = self._bind(route, method, status)
        counter.inc()
        histogram.observe(seconds)

    def on_answer(self, route: str, scope: dict[str, Any], status: int, seconds: float) -> None:
        """Counts the answer to a request, and logs it if that is on."""
        self.count_answer(route, scope["method"], status, seconds)
        if self.answers is not None:
            self.answers.log(scope, status, seconds)

    def answered(self) -> list[tuple[int, float]]:
        """Each status with a number of responses; a status may appear more than once."""
        samples = [sample for metric in self._requests.collect() for sample in metric.samples]
        return [(int(sample.labels["status"]), sample.value) for sample in samples if sample.labels["status"].isdigit()]

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
    """The metrics of the gRPC port. Labels come from closed sets: the served methods, gRPC's statuses."""

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
