"""`context.metrics` of an archive: TorchServe's calls, counted by our own metrics of handlers."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from penstock.errors import HandlerContractError
from penstock.extensions.torchserve.child.surface.metric_words import (
    UNITS,
    DeclaredMetric,
    Dimension,
    MetricTypes,
    declared_metrics,
)
from penstock.handlers.metrics.metrics import CounterMetric, GaugeMetric, HandlerMetric, HandlerMetrics, HistogramMetric

log = logging.getLogger(__name__)
_SIZES = ("MB", "kB", "GB", "B")
_TIMES = ("ms", "s")
Dimensions = Sequence[Dimension]
# Of one model. Code that makes a name of each request's text must not fill the memory.
MOST_METRICS = 200


def metrics_of(metrics: HandlerMetrics, model_name: str, declared: Mapping[str, Any], *, lines: bool = False) -> ArchiveMetrics:
    """What the code of an archive has as `context.metrics`. `declared` is `model_metrics` of the archive's metrics.yaml.

    `lines`: also write TorchServe's line of each call to the model's log. Raises `HandlerLoadError` for wrong metrics.
    """
    own = ArchiveMetrics(metrics, model_name, lines=lines)
    for one in declared_metrics(declared):
        own.add_declared(one)
    Metric.counted_by = own
    return own


class ArchiveMetrics:
    """Metrics by type and name. One that was not declared is made by the first call that names it.

    A call with wrong dimensions or a wrong value fails no request: it is not counted, and the log says so.
    """

    def __init__(self, metrics: HandlerMetrics, model_name: str, *, lines: bool = False) -> None:
        self._metrics = metrics
        self._writes_lines = lines
        self._is_full = False
        self.model_name = model_name
        self.request_ids: Mapping[int, str] = {}
        self.cache: dict[MetricTypes, dict[str, ArchiveMetric]] = {kind: {} for kind in MetricTypes}

    def set_request_ids(self, request_ids: Mapping[int, str]) -> None:
        self.request_ids = request_ids

    def add_counter(self, name: str, value: float, idx: Any = None, dimensions: Dimensions = ()) -> None:
        self.add_metric(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: Any = None,
        unit: str = "ms",
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        if unit not in _TIMES:
            raise ValueError(f"the unit for a timed metric should be one of {[*_TIMES]}")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: Any = None,
        unit: str = "MB",
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        if unit not in _SIZES:
            raise ValueError(f"The unit for size based metric is one of {[*_SIZES]}")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: Any = None,
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: Any, dimensions: Dimensions = ()) -> None:
        """Count an error. A text as `value` counts as one error."""
        amount = 1 if isinstance(value, str) else value
        self._found(name, "", (*dimensions, Dimension("Level", "Error")), MetricTypes.COUNTER, amount, None)

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: Any = None,
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Count `value` with the dimensions, the model's name and the level `Model`."""
        whole = (*dimensions, Dimension("ModelName", self.model_name), Dimension("Level", "Model"))
        self._found(name, unit, whole, metric_type, value, idx)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> ArchiveMetric:
        """Make a metric whose values are then given with `add_or_update`. Raises `TypeError` for a wrong name or type."""
        if not isinstance(metric_name, str):
            raise TypeError("`metric_name` must be a str")
        if not isinstance(metric_type, MetricTypes):
            raise TypeError("`metric_type` must be a MetricTypes enum")
        return self.add_declared(DeclaredMetric(metric_name, unit or "", tuple(dimension_names or ()), metric_type))

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> ArchiveMetric:
        """A metric that was declared or made before. Raises `KeyError` if there is none."""
        metric = self.cache[metric_type].get(metric_name)
        if metric is None:
            raise KeyError(f"Metric of type '{metric_type}' and name '{metric_name}' doesn't exist")
        return metric

    def add_declared(self, declared: DeclaredMetric) -> ArchiveMetric:
        known = self.cache[declared.type]
        if declared.name not in known and sum(map(len, self.cache.values())) >= MOST_METRICS:
            self._refuse(declared.name)
            return ArchiveMetric(declared, None)
        made = ArchiveMetric(declared, _counting(self._metrics, declared), lines=self._writes_lines)
        known[declared.name] = made
        return made

    def _found(self, name: str, unit: str, dimensions: Dimensions, metric_type: MetricTypes, value: Any, idx: Any) -> None:
        metric = self.cache[metric_type].get(name)
        if metric is None:
            metric = self.add_metric_to_cache(name, unit, [one.name for one in dimensions], metric_type)
        ids = [self.request_ids[idx]] if idx in self.request_ids else list(self.request_ids.values())
        metric.count(value, {one.name: one.value for one in dimensions}, ",".join(ids))

    def _refuse(self, name: str) -> None:
        if not self._is_full:
            self._is_full = True
            log.error("metric %.64s is not counted, nor any other new one: the model has %d metrics", name, MOST_METRICS)


class ArchiveMetric:
    """One metric of an archive, as `add_metric_to_cache` and `get_metric` return it."""

    def __init__(self, declared: DeclaredMetric, counting: Callable[..., None] | None, *, lines: bool = False) -> None:
        self._declared = declared
        self._labels = declared.own_labels
        self._counting = counting
        self._writes_lines = lines
        self._has_complained = False
        self.metric_name = declared.name
        self.unit = declared.unit_word
        self.dimension_names = list(declared.dimensions)
        self.metric_type = declared.type

    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), request_id: str = "") -> None:
        """Add to a counter, set a gauge, or observe a value; `dimension_values` are in the order of the dimensions."""
        if len(dimension_values) != len(self.dimension_names):
            self._complain(list(dimension_values))
            return
        self.count(value, dict(zip(self.dimension_names, dimension_values, strict=True)), request_id)

    def update(self, value: float, request_id: str = "", dimensions: Dimensions = ()) -> None:
        """The older form of `add_or_update`: the dimensions with their names."""
        self.count(value, {one.name: one.value for one in dimensions}, request_id)

    def count(self, value: Any, dimensions: Mapping[str, Any], request_ids: str) -> None:
        """Count the value in the series of these dimensions. Those that the metric does not have are left out."""
        if not dimensions.keys() >= set(self.dimension_names):
            self._complain([*dimensions])
            return
        values = {name: dimensions[name] for name in self.dimension_names}
        if self._counting is not None:
            self._counting(value, **dict(zip(self._labels, values.values(), strict=True)))
        if self._writes_lines:
            shown = ",".join(f"{name}:{own}" for name, own in values.items())
            sys.stdout.write(_line(self._declared, value, shown, request_ids))

    def _complain(self, given: list[Any]) -> None:
        """Once: a wrong call stands in a loop."""
        if not self._has_complained:
            self._has_complained = True
            log.error("metric %s is not counted: its dimensions are %s, not %s", self.metric_name, self.dimension_names, given)


class Metric:
    """A metric on its own, with one value: `update` counts it among those of the model that runs in this process."""

    counted_by: ClassVar[ArchiveMetrics | None] = None

    def __init__(
        self,
        name: str,
        value: Any,
        unit: str,
        dimensions: Dimensions,
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.unit = UNITS.get(unit, unit)
        self.dimensions = list(dimensions)
        self.request_id = request_id
        self.metric_method = metric_method
        self.metric_type = MetricTypes.COUNTER

    def update(self, value: Any) -> None:
        if self.counted_by is not None:
            names = [one.name for one in self.dimensions]
            known = self.counted_by.cache[self.metric_type].get(self.name)
            metric = known or self.counted_by.add_metric_to_cache(self.name, self.unit, names, self.metric_type)
            metric.update(value, self.request_id or "", self.dimensions)

    def reset(self) -> None:
        self.update(0)

    def __str__(self) -> str:
        ids = f",{self.request_id}" if self.request_id else ""
        shown = ",".join(map(str, self.dimensions))
        return f"{self.name}.{self.unit}:{self.value}|#{shown}|#hostname:{socket.gethostname()},{int(time.time())}{ids}"

    def to_dict(self) -> dict[str, Any]:
        shown = {"MetricName": self.name, "Value": self.value, "Unit": self.unit, "Dimensions": self.dimensions}
        return {**shown, "Timestamp": int(time.time()), "HostName": socket.gethostname(), "RequestId": self.request_id}


def _line(metric: DeclaredMetric, value: Any, dimensions: str, request_ids: str) -> str:
    """What TorchServe's model_metrics.log has of one call."""
    who = f"requestID:{request_ids}," if request_ids else ""
    host = f"{socket.gethostname()},{who}timestamp:{int(time.time())}"
    return f"{metric.name}.{metric.unit or metric.unit_word}:{value}|#{dimensions}|#hostname:{host}\n"


_CLASSES: dict[MetricTypes, type[HandlerMetric]] = {
    MetricTypes.COUNTER: CounterMetric,
    MetricTypes.GAUGE: GaugeMetric,
    MetricTypes.HISTOGRAM: HistogramMetric,
}


def _counting(metrics: HandlerMetrics, declared: DeclaredMetric) -> Callable[..., None] | None:
    """What counts a value of the metric; None, and a line in the log, if there cannot be such a metric."""
    try:
        made = metrics.made(_CLASSES[declared.type](metrics, declared.sample()))
    except HandlerContractError as error:
        log.error("metric %s is not counted: %s", declared.name, error)
        return None
    match made:
        case CounterMetric():
            return made.inc
        case GaugeMetric():
            return made.set
        case HistogramMetric():
            return made.observe
    return None
