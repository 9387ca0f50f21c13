"""What handlers of archives count, under TorchServe's names, for dashboards that were made for them.

The series are those of `handler_series.py` once more: TorchServe tells no slots and no versions apart.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from threading import Lock

from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.handlers.metrics.samples import MetricKind, MetricSample
from penstock.workers.telemetry.handler_series import write_series

# In one worker. A model of ours has at most 200, and TorchServe's names add the model's own.
MOST_SERIES = 2_000
# The ending of counters' names.
COUNTED = "_total"
HOST_LABEL = "Hostname"
_OF_GATEWAYS = frozenset({"HandlerTime", "PredictionTime"})


class TorchServeSeries(Collector):
    """Slots' threads `add`, a scrape collects. A gauge has the value that came last, whichever slot it came from."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._host = socket.gethostname()
        # By TorchServe's name, then by the values of its labels.
        self._found: dict[str, dict[tuple[str, ...], MetricSample]] = {}
        self._room = MOST_SERIES

    def add(self, samples: Sequence[MetricSample]) -> None:
        """Add what one child sent. Samples of handlers other than archives have no foreign name and are left out. So are the
        names that a gateway's page has for every model.
        """
        with self._lock:
            for sample in samples:
                if sample.foreign and sample.foreign[0] not in _OF_GATEWAYS and sample.is_sound:
                    self._add(sample)

    def _add(self, sample: MetricSample) -> None:
        family = self._found.setdefault(sample.foreign[0], {})
        first = next(iter(family.values()), sample)
        # If archives give one name to different things, the first one is shown.
        if (first.kind, first.foreign, first.bounds) != (sample.kind, sample.foreign, sample.bounds):
            return
        known = family.get(sample.label_values)
        if known is not None:
            family[sample.label_values] = _sum(known, sample)
        elif self._room >= sample.series:
            self._room -= sample.series
            # A copy, because `HandlerSeries` adds to what it got.
            family[sample.label_values] = replace(sample)

    def describe(self) -> list[Metric]:
        """Nothing is known before handlers report."""
        return []

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            pages = [(name, list(family.values())) for name, family in sorted(self._found.items())]
        yield from (self._page(name, samples) for name, samples in pages if samples)

    def _page(self, name: str, samples: list[MetricSample]) -> Metric:
        first = samples[0]
        # A counter without the ending that OpenMetrics asks of counters has no declared type, as on a gateway's page.
        is_counter = first.kind is MetricKind.COUNTER
        ending = COUNTED if is_counter and name.endswith(COUNTED) else ""
        kind = "unknown" if is_counter and not ending else first.kind.value
        words = f"Torchserve prometheus {first.kind.value} metric with unit: {first.foreign[1]}"
        page = Metric(name.removesuffix(ending), words, kind)
        for sample in samples:
            labels = dict(zip(sample.foreign[2:], sample.label_values, strict=True))
            write_series(page, {**labels, HOST_LABEL: self._host}, sample, ending=ending)
        return page


def _sum(known: MetricSample, sample: MetricSample) -> MetricSample:
    if sample.kind is MetricKind.GAUGE:
        return replace(sample)
    counts = tuple(mine + more for mine, more in zip(known.counts, sample.counts, strict=True))
    return replace(known, value=known.value + sample.value, counts=counts)
