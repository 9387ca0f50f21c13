"""The charts of a history as lines in a box of 300 x 100, with their labels and figures as text. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import words
from penstock.extensions.history.gateway.view import ModelHistory, series

RANGES = {"5m": 300, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800}
DEFAULT_RANGE = "1h"
WIDTH, HEIGHT = 300.0, 100.0
# Room for the thickness of a line at the top.
_TOP = 4.0
# Tones of lines in one chart, in their order. The style sheet gives each a colour and a pattern of dashes.
_TONES = ("a", "b", "c", "d", "e", "f", "g")
Text = Callable[[float | None], str]
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """`path` is SVG; empty if nothing is known. The figures are those of the whole range, as text."""

    name: str
    tone: str
    path: str
    now: str
    lowest: str
    highest: str


@dataclass(frozen=True, slots=True)
class HistoryChart:
    """`top` is the value at the upper edge, as text; the lower edge is 0."""

    title: str
    note: str
    top: str
    lines: tuple[HistoryLine, ...]

    @property
    def is_empty(self) -> bool:
        return not any(line.path for line in self.lines)


@dataclass(frozen=True, slots=True)
class HistoryCharts:
    """All charts of one range. `since` are the labels below each of them, from the left."""

    charts: tuple[HistoryChart, ...]
    since: tuple[str, str, str]
    error: str
    away: tuple[str, ...]


def charts_of(history: ModelHistory, shown: Mapping[str, Any], range_s: int) -> HistoryCharts:
    """`shown`: the same history as `GET /v1/history` has it."""
    all_series = series(history)
    rates = {
        "accepted": all_series["accepted_per_s"],
        "succeeded": all_series["succeeded_per_s"],
        "failed": all_series["failed_per_s"],
    }
    charts = [
        chart("Jobs", "per second", rates, words.per_second),
        chart("Total time", "accepted to settled", all_series["total_s"], words.duration),
        chart("Queue time", "accepted to claimed", all_series["queue_s"], words.duration),
        chart("Waiting", "jobs, at most", {"waiting": all_series["waiting"], "running": all_series["running"]}, _count),
        chart("Oldest waiting job", "at most", {"oldest": all_series["oldest_s"]}, words.duration),
        chart("Batch size", "mean", {"jobs": all_series["batch_size"]}, words.number),
        chart("Why batches left", "share of batches", all_series["releases"], words.percent, least=1.0),
        chart("Busy", "share of the time", _busy(all_series), words.percent, least=1.0),
        chart("Slots", "ready", {name: all_series[name] for name in ("slots", "workers") if name in all_series}, _count),
        *(
            [chart("Memory", "of slots or their devices", {"memory": all_series["memory_bytes"]}, words.size)]
            if history.model
            else []
        ),
    ]
    since = (f"{words.duration(range_s)} ago", f"{words.duration(range_s / 2)} ago", "now")
    return HistoryCharts(tuple(charts), since, words.percent(shown["percentile_error"]), tuple(history.away))


def _busy(all_series: Mapping[str, Any]) -> dict[str, Values]:
    """The busy share of slots and, if there are any, of their GPUs, whatever process uses them."""
    devices: Values = all_series["device_busy_share"]
    return {"slots": all_series["busy_share"], **({"GPUs": devices} if any(share is not None for share in devices) else {})}


def chart(title: str, note: str, lines: Mapping[str, Values], text: Text, *, least: float = 0.0) -> HistoryChart:
    """`least`: the lowest value that the upper edge may have."""
    highest = max((value for values in lines.values() for value in values if value is not None), default=0.0)
    top = max(least, nice(highest))
    drawn = (line(name, tone, values, text, top=top) for (name, values), tone in zip(lines.items(), _TONES, strict=False))
    return HistoryChart(title, note, text(top), tuple(drawn))


def line(name: str, tone: str, values: Values, text: Text, *, top: float) -> HistoryLine:
    known = [value for value in values if value is not None]
    latest = next((value for value in reversed(values) if value is not None), None)
    return HistoryLine(
        name, tone, path(values, top), text(latest), text(min(known, default=None)), text(max(known, default=None))
    )


def path(values: Values, top: float) -> str:
    """A line through the values; where one is missing the line has a gap, and a value between two gaps is a dot."""
    step, parts, is_open = WIDTH / max(1, len(values) - 1), [], False
    for place, value in enumerate(values):
        if value is not None:
            y = HEIGHT - (HEIGHT - _TOP) * min(1.0, value / top)
            parts.append(f"L{place * step:.1f},{y:.1f}" if is_open else f"M{place * step:.1f},{y:.1f}h0")
        is_open = value is not None
    return "".join(parts)


def nice(highest: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 ... that is not less, so that the edge does not move with every value."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= highest * (1 - 1e-9))


def _count(value: float | None) -> str:
    return words.UNKNOWN if value is None else words.count(value)
