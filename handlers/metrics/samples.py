"""The samples that a model's process sends of its handler's metrics, and the limits of their names and series. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import isfinite

from msgspec import Struct

# Series of one model as Prometheus counts them: a histogram has one per bucket and two more.
SERIES_PER_MODEL = 200
# The value of all labels of the one series that counts what has no room for a series of its own.
OVERFLOW = "overflow"
LABEL_CHARS = 128
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# Model code that was written for another server may have capitals in the names of its metrics.
_FOREIGN_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
# Prometheus appends these to names of its own.
_ENDINGS = ("_total", "_bucket", "_count", "_sum", "_created", "_info")
# Metrics of penstock itself are called penstock_model_... with these.
TAKEN_NAMES = ("load_seconds", "deadline_seconds", "paused", "unloaded")
_TAKEN_LABELS = ("model", "version", "slot", "le", "quantile", "job", "instance")


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSample(Struct, array_like=True):
    """The change of one series since it was last sent: `value` is a counter's increase or a gauge's value.

    Of a histogram it is the increase of the sum, and `counts` are the increases per bucket: one for each of the upper `bounds`,
    and one for what is above them all. `label_values` are in the order of `labels`. `foreign` is empty, or what another server
    calls the metric: its name, its unit and its labels.
    """

    name: str
    kind: MetricKind
    value: float
    labels: tuple[str, ...] = ()
    label_values: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    help: str = ""
    foreign: tuple[str, ...] = ()

    @property
    def series(self) -> int:
        """The number of series that Prometheus counts for it."""
        return len(self.counts) + 2 if self.kind is MetricKind.HISTOGRAM else 1

    @property
    def is_sound(self) -> bool:
        """Whether it can be added up; model code may send anything."""
        numbers = [self.value, *self.bounds] if self.kind is MetricKind.GAUGE else [self.value, *self.bounds, *self.counts]
        rises = self.kind is not MetricKind.COUNTER or self.value >= 0
        buckets = len(self.bounds) + 1 if self.kind is MetricKind.HISTOGRAM else 0
        fits = len(self.label_values) == len(self.labels) and len(self.counts) == buckets
        is_named = not naming_fault(self.name, self.labels, self.bounds) and self._has_sound_foreign
        return rises and fits and all(map(isfinite, numbers)) and is_named

    @property
    def _has_sound_foreign(self) -> bool:
        if not self.foreign:
            return True
        name, *rest = self.foreign
        return len(rest) == len(self.labels) + 1 and may_be_foreign(name, rest[1:])


def may_be_foreign(name: str, labels: Sequence[str]) -> bool:
    """Whether Prometheus takes a metric of this name with these labels."""
    return all(_FOREIGN_NAME.fullmatch(one) for one in (name, *labels)) and len(set(labels)) == len(labels)


def naming_fault(name: str, labels: Sequence[str], bounds: Iterable[float] = ()) -> str:
    """Why a metric cannot have this name, these labels or these buckets, and what to do; empty if it can."""
    if not _NAME.fullmatch(name) or name.endswith(_ENDINGS):
        return f"{name!r} cannot be a metric's name: write a snake_case word such as cache_hits, without {', '.join(_ENDINGS)}"
    if name in TAKEN_NAMES:
        return f"penstock has a metric penstock_model_{name} of its own; choose another name"
    for label in labels:
        if not _NAME.fullmatch(label) or label in _TAKEN_LABELS:
            return f"{label!r} cannot be a label of {name}: write a snake_case word other than {', '.join(_TAKEN_LABELS)}"
    steps = list(bounds)
    if len(set(labels)) < len(labels) or steps != sorted(set(steps)) or not all(map(isfinite, steps)):
        return f"the labels of {name} must differ, and its buckets must be ascending numbers"
    return ""
