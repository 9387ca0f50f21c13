"""Three counters under TorchServe's names, for dashboards made for it. Opt-in; a view over what predictions are timed by."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_LABELS = ("model_name", "model_version", "hostname")
# As there, the names of the two sums lack the ending that Prometheus wants of a counter: hence of no declared type.
_UNTYPED = "unknown"
UNVERSIONED = "default"


class TorchServeFigures(Collector):
    """Answer-now requests by model and the version asked for. The sums are of the answered ones only, as there."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._total_us: Counter[tuple[str, str]] = Counter()
        self._queue_us: Counter[tuple[str, str]] = Counter()

    def asked(self, model: str, version: str) -> None:
        self._requests[model, version or UNVERSIONED] += 1

    def answered(self, model: str, version: str, *, total_s: float, queue_s: float) -> None:
        """`queue_s` is the part of `total_s` that was not spent in the model's stages."""
        self._total_us[model, version or UNVERSIONED] += round(total_s * 1e6)
        self._queue_us[model, version or UNVERSIONED] += round(queue_s * 1e6)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("ts_inference_requests", "Total number of inference requests.", labels=_LABELS)
        for (model, version), count in list(self._requests.items()):
            requests.add_metric((model, version, self._host), count)
        yield requests
        yield self._sums("ts_inference_latency_microseconds", "Cumulative inference duration in microseconds.", self._total_us)
        yield self._sums("ts_queue_latency_microseconds", "Cumulative queue duration in microseconds.", self._queue_us)

    def _sums(self, name: str, text: str, sums: Counter[tuple[str, str]]) -> Metric:
        family = Metric(name, text, _UNTYPED)
        for (model, version), total in list(sums.items()):
            family.add_sample(name, dict(zip(_LABELS, (model, version, self._host), strict=True)), total)
        return family
