"""The metrics that a handler counts itself, until they are sent to the supervisor, which adds them up and shows them."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from threading import Lock
from typing import Any, TypeVar

from penstock.errors import HandlerContractError
from penstock.handlers.metrics.samples import (
    LABEL_CHARS,
    OVERFLOW,
    SECONDS,
    SERIES_PER_MODEL,
    MetricKind,
    MetricSample,
    naming_fault,
)

LabelValues = tuple[str, ...]
M = TypeVar("M", bound="HandlerMetric")


class HandlerMetrics:
    """`context.metrics`: makes metrics, each shown as `penstock_model_NAME` with the model's name and version.

    Any thread may use them. A metric that is made again with the same kind and labels is the same one.
    """

    def __init__(self) -> None:
        self._found: dict[str, HandlerMetric] = {}
        self._room = SERIES_PER_MODEL
        self._is_paused = False
        # Series that changed since the last `drain`. A plain attribute: looking for changes after each batch costs no call.
        self.unsent: dict[tuple[str, LabelValues], MetricSample] = {}
        self.lock = Lock()

    def counter(self, name: str, labels: Sequence[str] = (), *, help: str = "") -> CounterMetric:
        """A number that only grows; `_total` is appended to its name. Raises `HandlerContractError` for a bad name."""
        return self.made(CounterMetric(self, MetricSample(name, MetricKind.COUNTER, 0.0, tuple(labels), help=help)))

    def gauge(self, name: str, labels: Sequence[str] = (), *, help: str = "") -> GaugeMetric:
        """A number that goes up and down. Each child of the model has its own, told apart by a label `slot`."""
        return self.made(GaugeMetric(self, MetricSample(name, MetricKind.GAUGE, 0.0, tuple(labels), help=help)))

    def histogram(
        self, name: str, labels: Sequence[str] = (), *, help: str = "", buckets: Sequence[float] = SECONDS
    ) -> HistogramMetric:
        """How values are spread over `buckets`, which are ascending upper bounds (by default seconds)."""
        sample = MetricSample(name, MetricKind.HISTOGRAM, 0.0, tuple(labels), bounds=tuple(map(float, buckets)), help=help)
        return self.made(HistogramMetric(self, sample))

    def made(self, metric: M) -> M:
        """The metric, or the same one that was made before. Raises `HandlerContractError` for a bad name."""
        blank = metric.blank
        if fault := naming_fault(blank.name, blank.labels, blank.bounds):
            raise HandlerContractError(fault)
        with self.lock:
            known = self._found.setdefault(blank.name, metric)
        if type(known) is not type(metric) or known.blank != blank:
            raise HandlerContractError(f"the metric {blank.name} was made before, as a {known.blank.kind} with other values")
        return known

    def drain(self) -> list[MetricSample]:
        """The series that changed since the last call."""
        with self.lock:
            changed, self.unsent = self.unsent, {}
        return list(changed.values())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing counts within the block: a warm-up is no work."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    # For metrics, which hold the lock.

    def changed(self, metric: HandlerMetric, values: LabelValues) -> MetricSample | None:
        """The changes of this series; None while metrics are paused. Beyond the most series, labels count as `OVERFLOW`."""
        if self._is_paused:
            return None
        if values not in metric.known:
            values = self._admitted(metric, values)
        key = metric.blank.name, values
        sample = self.unsent.get(key)
        if sample is None:
            sample = self.unsent[key] = metric.fresh(values)
        return sample

    def _admitted(self, metric: HandlerMetric, values: LabelValues) -> LabelValues:
        if self._room >= metric.blank.series:
            self._room -= metric.blank.series
            metric.known.add(values)
            return values
        return tuple(OVERFLOW for _ in values)


class HandlerMetric:
    """One metric. `blank` is its sample before anything happened; `known` are its series so far, by their label values.

    A wrong use (a label too many, a number that is none) fails no item: it does not count, and the first one is written to the
    log.
    """

    def __init__(self, owner: HandlerMetrics, blank: MetricSample) -> None:
        self._owner = owner
        if blank.kind is MetricKind.HISTOGRAM:
            blank.counts = (0,) * (len(blank.bounds) + 1)
        self.blank = blank
        self.known: set[LabelValues] = set()
        self._has_complained = False

    def fresh(self, values: LabelValues) -> MetricSample:
        """The series before anything happened."""
        blank = self.blank
        return MetricSample(
            blank.name, blank.kind, 0.0, blank.labels, values, blank.bounds, blank.counts, blank.help, blank.foreign
        )

    def _count(self, number: float, labels: dict[str, Any], *, least: float = -sys.float_info.max) -> None:
        size, values = _number(number), self._values(labels)
        if size is None or size < least:
            self._complain(f"{number!r:.40} cannot be counted")
        elif values is not None:
            with self._owner.lock:
                sample = self._owner.changed(self, values)
                if sample is not None:
                    self._add(sample, size)

    def _add(self, sample: MetricSample, size: float) -> None:
        raise NotImplementedError

    def _values(self, labels: dict[str, Any]) -> LabelValues | None:
        """The label values in their order; None if the labels are wrong."""
        wanted = self.blank.labels
        if len(labels) != len(wanted) or not all(name in labels for name in wanted):
            self._complain(f"its labels are {', '.join(wanted) or 'none'}, not {', '.join(labels) or 'none'}")
            return None
        return tuple(str(labels[name])[:LABEL_CHARS] for name in wanted)

    def _complain(self, why: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            sys.stderr.write(f"metric {self.blank.name}: {why}\n")


class CounterMetric(HandlerMetric):
    def inc(self, amount: float = 1.0, /, **labels: Any) -> None:
        """Add `amount`, at least 0, to the series with these labels."""
        self._count(amount, labels, least=0.0)

    def _add(self, sample: MetricSample, size: float) -> None:
        sample.value += size


class GaugeMetric(HandlerMetric):
    def set(self, value: float, /, **labels: Any) -> None:
        """The series with these labels has this value from now on."""
        self._count(value, labels)

    def _add(self, sample: MetricSample, size: float) -> None:
        sample.value = size


class HistogramMetric(HandlerMetric):
    def observe(self, value: float, /, **labels: Any) -> None:
        """Count `value` in the series with these labels."""
        self._count(value, labels)

    def _add(self, sample: MetricSample, size: float) -> None:
        counts = list(sample.counts)
        counts[bisect_left(sample.bounds, size)] += 1
        sample.counts, sample.value = tuple(counts), sample.value + size


def _number(value: Any) -> float | None:
    """A finite number, also one of an array library; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
