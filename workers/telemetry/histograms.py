"""Histograms that are cheap to observe per job: a search and two additions each, and one lock per batch."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry


class Histogram:
    """The observations under one set of label values. Safe to use from several threads."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        self.observe_all((value,))

    def observe_all(self, values: Iterable[float]) -> None:
        bounds, counts = self._bounds, self._counts
        with self._lock:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
                self._sum += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """The cumulated counts by upper bound, written as Prometheus writes it, and the sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(counts), strict=True)), total


class Histograms(Collector):
    """One metric: a histogram per set of label values, created at its first use."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], *, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._bounds = bounds
        self._lock = threading.Lock()
        self._histograms: dict[tuple[str, ...], Histogram] = {}
        registry.register(self)

    def labels(self, *values: str) -> Histogram:
        with self._lock:
            return self._histograms.setdefault(values, Histogram(self._bounds))

    def describe(self) -> list[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        with self._lock:
            histograms = list(self._histograms.items())
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, histogram in histograms:
            buckets, total = histogram.read()
            family.add_metric(values, buckets, total)
        yield family
