"""The words of `ts.metrics`: dimensions, types and units, and what a metric of that world is called in ours. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.handlers.metrics.samples import SECONDS, MetricKind, MetricSample, may_be_foreign, naming_fault

UNITS: dict[str | None, str] = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    "": "unit",
    None: "unit",
}
# Upper bounds for values whose unit does not tell their size.
_DECADES = tuple(float(step * 10**power) for power in range(6) for step in (1, 3))
_BOUNDS = {"Seconds": SECONDS, "Milliseconds": tuple(1000 * bound for bound in SECONDS)}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAME_CHARS = 50


class MetricTypes(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Dimension:
    """A label with its value."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, Any]:
        return {"Name": self.name, "Value": self.value}


class Units:
    """The names of units by their abbreviations."""

    def __init__(self) -> None:
        self.units = dict(UNITS)


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """A metric as an archive's metrics.yaml or its code declares it, with the unit as it is written there."""

    name: str
    unit: str
    dimensions: tuple[str, ...]
    type: MetricTypes

    @property
    def unit_word(self) -> str:
        """`Milliseconds` for `ms`; a word that is not an abbreviation stays."""
        return UNITS.get(self.unit, self.unit)

    @property
    def own_name(self) -> str:
        """The name of the metric in penstock: `handler_time` of `HandlerTime`."""
        name = _snake_case(self.name)
        return name if not naming_fault(name, ()) else f"{name}_value"

    @property
    def own_labels(self) -> tuple[str, ...]:
        labels = [_snake_case(name) for name in self.dimensions]
        return tuple(f"{label}_" if naming_fault("name", [label]) else label for label in labels)

    def sample(self) -> MetricSample:
        """The metric as ours, before anything happened."""
        kind = MetricKind(self.type.value)
        bounds = _BOUNDS.get(self.unit_word, _DECADES) if kind is MetricKind.HISTOGRAM else ()
        foreign = (
            (self.name, self.unit or self.unit_word, *self.dimensions) if may_be_foreign(self.name, self.dimensions) else ()
        )
        words = f"{self.name} ({self.unit_word}), counted by the model's handler."
        return MetricSample(self.own_name, kind, 0.0, self.own_labels, bounds=bounds, help=words, foreign=foreign)


def declared_metrics(declared: Mapping[str, Any]) -> list[DeclaredMetric]:
    """The metrics of `model_metrics` in a metrics.yaml. Raises `HandlerLoadError` that names the entry that is wrong."""
    return [_declared(kind, entry) for kind, entries in declared.items() for entry in _entries(kind, entries)]


def _entries(kind: str, entries: Any) -> Sequence[Any]:
    if kind not in {one.value for one in MetricTypes}:
        raise HandlerLoadError(f"model_metrics has counter, gauge and histogram, not {kind!r}; correct the metrics file")
    if entries is not None and not isinstance(entries, list):
        raise HandlerLoadError(f"model_metrics.{kind} must be a list of metrics; correct the metrics file")
    return entries or []


def _declared(kind: str, entry: Any) -> DeclaredMetric:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    dimensions = (entry.get("dimensions") or []) if isinstance(entry, Mapping) else []
    if not isinstance(name, str) or not name or not isinstance(dimensions, list):
        raise HandlerLoadError(f"model_metrics.{kind} has an entry without name or with wrong dimensions: {entry!r:.80}")
    return DeclaredMetric(name, str(entry.get("unit") or ""), tuple(map(str, dimensions)), MetricTypes(kind))


def _snake_case(name: str) -> str:
    words = re.sub(r"\W+", "_", _CAMEL.sub("_", name), flags=re.ASCII).lower().strip("_")[:_NAME_CHARS]
    return words if words[:1].isalpha() else f"metric_{words}"
