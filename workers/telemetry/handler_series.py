"""The metrics that handlers count themselves, added up over the children of each model and shown to Prometheus.

Increases are added up here and not in the child, so that a counter goes on growing when its child is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from threading import Lock

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.handlers.metrics.samples import OVERFLOW, SERIES_PER_MODEL, MetricKind, MetricSample
from penstock.model_spec import ModelSpec

log = structlog.get_logger(__name__)
METRIC_OVERFLOW = "metric_overflow"
METRIC_REFUSED = "metric_refused"

Labels = tuple[tuple[str, str], ...]


class HandlerSeries(Collector):
    """Slots' threads `add`, a scrape collects. A model has at most `SERIES_PER_MODEL` series, and as many for overflows."""

    def __init__(self) -> None:
        self._lock = Lock()
        # By name, then by labels. All series of a name have one kind: Prometheus takes no other page.
        self._found: dict[str, dict[Labels, MetricSample]] = {}
        self._sizes: Counter[str] = Counter()
        self._slots: dict[str, list[str]] = {}
        self._complaints: set[tuple[str, str]] = set()

    def add(self, spec: ModelSpec, slot: str, samples: Sequence[MetricSample]) -> None:
        with self._lock:
            for sample in samples:
                if sample.is_sound and self._is_of_one_kind(sample):
                    self._add(spec, slot, sample)
                else:
                    self._complain(METRIC_REFUSED, spec, sample)

    def _is_of_one_kind(self, sample: MetricSample) -> bool:
        """Whether the other series of this name, maybe another model's, are of the same kind."""
        others = self._found.get(sample.name)
        return not others or next(iter(others.values())).kind is sample.kind

    def _add(self, spec: ModelSpec, slot: str, sample: MetricSample) -> None:
        family = self._found.get(sample.name, {})
        labels = self._labels(spec, slot, sample, sample.label_values)
        if OVERFLOW in sample.label_values or (labels not in family and not self._has_room(spec, sample, SERIES_PER_MODEL)):
            labels = self._labels(spec, slot, sample, [OVERFLOW] * len(sample.labels))
            self._complain(METRIC_OVERFLOW, spec, sample)
        if labels in family:
            _merge(family[labels], sample)
        elif self._has_room(spec, sample, 2 * SERIES_PER_MODEL):
            self._sizes[spec.name] += sample.series
            self._found.setdefault(sample.name, {})[labels] = sample

    def _has_room(self, spec: ModelSpec, sample: MetricSample, most: int) -> bool:
        return self._sizes[spec.name] + sample.series <= most

    def _labels(self, spec: ModelSpec, slot: str, sample: MetricSample, values: Sequence[str]) -> Labels:
        own = tuple(zip(sample.labels, values, strict=True))
        shared = (("model", spec.name), ("version", spec.version))
        return (*shared, *own) if sample.kind is not MetricKind.GAUGE else (*shared, ("slot", self._number(spec, slot)), *own)

    def _number(self, spec: ModelSpec, slot: str) -> str:
        """The model's slots count from 0, in the order in which they first reported."""
        slots = self._slots.setdefault(spec.name, [])
        if slot not in slots:
            slots.append(slot)
        return str(slots.index(slot))

    def _complain(self, event: str, spec: ModelSpec, sample: MetricSample) -> None:
        """Once per model."""
        if (event, spec.name) not in self._complaints:
            self._complaints.add((event, spec.name))
            log.warning(event, model=spec.name, metric=sample.name[:64], most_series=SERIES_PER_MODEL)

    def describe(self) -> list[Metric]:
        """Nothing: no series is known before handlers report."""
        return []

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            pages = [(name, _page(name, family)) for name, family in sorted(self._found.items())]
        yield from (page for _, page in pages)


def _merge(known: MetricSample, sample: MetricSample) -> None:
    if known.kind is MetricKind.GAUGE:
        known.value = sample.value
    elif known.bounds == sample.bounds:
        # A version that was loaded again may have other buckets, which cannot be added to those before.
        _increase(known, sample)


def _increase(known: MetricSample, sample: MetricSample) -> None:
    known.value += sample.value
    known.counts = tuple(mine + more for mine, more in zip(known.counts, sample.counts, strict=True))


def _page(name: str, family: dict[Labels, MetricSample]) -> Metric:
    first = next(iter(family.values()))
    page = Metric(f"penstock_model_{name}", first.help or "Counted by the model's handler.", first.kind.value)
    for labels, sample in family.items():
        write_series(page, dict(labels), sample, ending="_total")
    return page


def write_series(page: Metric, labels: dict[str, str], sample: MetricSample, *, ending: str = "") -> None:
    """Put the samples of one series on the page. `ending` is that of a counter's name."""
    if sample.kind is not MetricKind.HISTOGRAM:
        page.add_sample(page.name + (ending if sample.kind is MetricKind.COUNTER else ""), labels, sample.value)
        return
    totals = list(accumulate(sample.counts))
    bounds = [*(repr(float(bound)) for bound in sample.bounds), "+Inf"]
    for bound, count in zip(bounds, totals, strict=True):
        page.add_sample(f"{page.name}_bucket", {**labels, "le": bound}, count)
    page.add_sample(f"{page.name}_count", labels, totals[-1])
    page.add_sample(f"{page.name}_sum", labels, sample.value)
