"""The geometry of a chart: its frame, its axes and their ticks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.words import number

# The width of a phone's column, where a unit is one pixel; charts are a little larger on wider screens.
WIDTH, HEIGHT = 360.0, 210.0
LEFT, RIGHT, TOP, FLOOR = 54.0, WIDTH - 12.0, 10.0, HEIGHT - 34.0
# The minimum width of a character in a label, to tell whether labels would overlap.
_CHARACTER = 6.4


@dataclass(frozen=True, slots=True)
class Mark:
    """One SVG element. `title` is shown on hover."""

    tag: str
    attributes: Mapping[str, str]
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and its legend: names with their colours, which are classes of the stylesheet. `name` is for screen readers."""

    name: str
    marks: Sequence[Mark]
    legend: Sequence[tuple[str, str]] = ()
    height: float = HEIGHT
    width: float = WIDTH


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps the values from `low` to `high` onto the coordinates from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        low, high, at = (self._scaled(each) for each in (self.low, self.high, max(value, self.low)))
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def upward(values: Sequence[float], *, room: float = 1.06) -> Axis:
    """The vertical axis from 0 to a little above the highest value."""
    return Axis(0.0, max(values) * room or 1.0, FLOOR, TOP)


def across(low: float, high: float, *, log: bool = False) -> Axis:
    return Axis(low, high, LEFT, RIGHT, log)


def even_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) within the range."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * (1.0 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(count * step, 12) for count in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; if these are few, 2 and 5 times each of them too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0, 2.0, 5.0) if len(powers) <= 4 else (1.0,)
    return [tick for power in powers for factor in factors if low <= (tick := factor * 10.0**power) <= high]


def grid(x_axis: Axis, y_axis: Axis, *, x: str, y: str) -> list[Mark]:
    """Both axes with their ticks, names and horizontal lines."""
    ticks = [_tick(x_axis.position(value), number(value)) for value in x_axis.ticks()]
    return [*levels(y_axis, y), *ticks, name_below(x)]


def _tick(x: float, text: str) -> Mark:
    """A label at the right edge ends there; otherwise the edge would cut it off."""
    cut_off = x + len(text) * _CHARACTER / 2 > WIDTH
    return label(WIDTH if cut_off else x, FLOOR + 13, text, "end" if cut_off else "middle")


def levels(axis: Axis, name: str) -> list[Mark]:
    """The vertical axis with its ticks, its name and horizontal lines."""
    marks = [name_beside(name)]
    for value in axis.ticks():
        y = axis.position(value)
        marks.append(Mark("path", {"class": "g", "d": f"M{LEFT:.0f} {y:.1f}H{RIGHT:.0f}"}))
        marks.append(label(LEFT - 5, y + 3.5, number(value), "end"))
    return marks


def name_below(name: str) -> Mark:
    return label((LEFT + WIDTH) / 2, HEIGHT - 4, name, "middle")


def name_beside(name: str) -> Mark:
    middle = f"{(TOP + FLOOR) / 2:.0f}"
    return Mark("text", {"x": "10", "y": middle, "text-anchor": "middle", "transform": f"rotate(-90 10 {middle})"}, text=name)


def label(x: float, y: float, text: str, anchor: str, *, look: str = "") -> Mark:
    named = {"class": look} if look else {}
    return Mark("text", {**named, "x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}, text=text)


def rectangle(look: str, x: float, y: float, width: float, height: float, *, title: str = "", **more: str) -> Mark:
    sides = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    return Mark("rect", {"class": look, **sides, **{name.replace("_", "-"): value for name, value in more.items()}}, title)


def circle(look: str, x: float, y: float, radius: float, title: str) -> Mark:
    return Mark("circle", {"class": look, "cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": f"{radius:g}"}, title)
