"""Plots as SVG text, drawn so that they are legible at the width of a phone; colours come from the page's style. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from penstock.words import number

# The width of a phone's column: there a unit is a pixel, on wider screens a little more.
_WIDTH, _HEIGHT = 360.0, 210.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 12.0, 10.0, 34.0
_DOTS_UP_TO = 60
_WIDEST_BAR = 56.0
# A cell narrower than this holds no number.
_LEAST_WORDED = 30.0


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One curve; a gap (None) breaks it. `color` is a class of the page's style, `dashed` for what is only there to compare."""

    name: str
    color: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """From data to the drawing, and back to words."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = (self._scaled(each) for each in (self.low, self.high, max(value, self.low)))
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def even_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) within the range."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * (1.0 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(count * step, 12) for count in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0, 2.0, 5.0) if len(powers) <= 4 else (1.0,)
    return [tick for power in powers for factor in factors if low <= (tick := factor * 10.0**power) <= high]


def line_chart(
    lines: Sequence[ChartLine], *, x: str, y: str, log_x: bool = False, top: float | None = None, left: float | None = None
) -> str:
    """`top` and `left` fix an end of y and x; else they follow the data. Empty when there is nothing to draw."""
    points = [(at, value) for line in lines for at, value in line.points if value is not None]
    if not points:
        return ""
    across = _x_axis([at for at, _ in points] + ([] if left is None else [left]), log_x)
    most = top if top is not None else max(value for _, value in points) * 1.06
    up = Axis(0.0, most or 1.0, _HEIGHT - _BOTTOM, _TOP)
    body = "".join(_curve(line, across, up) for line in lines)
    return _svg(f"{y} against {x}", _grid(across, up, x=x, y=y) + body) + legend([(line.name, line.color) for line in lines])


def _x_axis(values: Sequence[float], log: bool) -> Axis:
    low, high = min(values), max(values)
    if log:
        low, high = max(low, 1e-3) * 0.97, high * 1.03
    if high <= low:
        high = low + 1.0
    return Axis(low, high, _LEFT, _WIDTH - _RIGHT, log)


def _curve(line: ChartLine, across: Axis, up: Axis) -> str:
    drawn, pieces, dots = False, [], []
    for at, value in line.points:
        if value is None:
            drawn = False
            continue
        place = f"{across.place(at):.1f} {up.place(value):.1f}"
        pieces.append(f"{'L' if drawn else 'M'}{place}")
        left, down = place.split()
        told = escape(f"{line.name}: {number(value)} at {number(at)}")
        dots.append(f'<circle class="f {line.color}" cx="{left}" cy="{down}" r="2.2"><title>{told}</title></circle>')
        drawn = True
    shown = "".join(dots) if len(dots) <= _DOTS_UP_TO and not line.dashed else ""
    return f'<path class="s {line.color}{" d" if line.dashed else ""}" d="{"".join(pieces)}"/>{shown}'


def bar_chart(bars: Sequence[tuple[str, float]], *, x: str, y: str) -> str:
    """One bar per pair, labelled below; every other label is left out where they would touch."""
    if not bars:
        return ""
    up = Axis(0.0, max(value for _, value in bars) * 1.06 or 1.0, _HEIGHT - _BOTTOM, _TOP)
    step = (_WIDTH - _LEFT - _RIGHT) / len(bars)
    wide = min(step * 0.8, _WIDEST_BAR)
    every = math.ceil(len(bars) * max(len(name) for name, _ in bars) * 7.5 / (_WIDTH - _LEFT - _RIGHT))
    drawn = []
    for place, (name, value) in enumerate(bars):
        left, high = _LEFT + place * step, up.place(value)
        told = escape(f"{name}: {number(value)}")
        drawn.append(
            f'<rect class="f c0" x="{left + (step - wide) / 2:.1f}" y="{high:.1f}" width="{wide:.1f}" '
            f'height="{_HEIGHT - _BOTTOM - high:.1f}"><title>{told}</title></rect>'
        )
        if place % every == 0:
            drawn.append(_text(left + step / 2, _HEIGHT - _BOTTOM + 13, name, "middle"))
    return _svg(f"{y} by {x}", _rows(up, y) + _text((_LEFT + _WIDTH) / 2, _HEIGHT - 4, x, "middle") + "".join(drawn))


def stack(parts: Sequence[tuple[str, float]], *, words: Callable[[float], str]) -> str:
    """One bar cut into its parts, and beneath it what each part is."""
    whole = sum(value for _, value in parts)
    if whole <= 0.0:
        return ""
    drawn, left = [], 0.0
    for place, (name, value) in enumerate(parts):
        wide = value / whole * _WIDTH
        told = escape(f"{name}: {words(value)}")
        drawn.append(
            f'<rect class="f c{place}" x="{left:.1f}" y="0" width="{wide:.1f}" height="34"><title>{told}</title></rect>'
        )
        left += wide
    picture = f'<svg viewBox="0 0 {_WIDTH:.0f} 34" role="img" aria-label="parts of the whole">{"".join(drawn)}</svg>'
    names = [(f"{name} {words(value)}, {value / whole:.0%}", f"c{place}") for place, (name, value) in enumerate(parts)]
    return picture + legend(names)


@dataclass(frozen=True, slots=True)
class Dot:
    """One thing at (x, y); `told` is what a reader who points at it is told."""

    x: float
    y: float
    color: str
    told: str
    radius: float = 3.0


def scatter(
    dots: Sequence[Dot],
    *,
    x: str,
    y: str,
    names: Sequence[tuple[str, str]],
    limit: float | None = None,
    path: Sequence[Dot] = (),
) -> str:
    """Things by two of their sides. `limit` is a line down at that x, `path` joins the best; later dots lie on earlier ones."""
    if not dots:
        return ""
    sides = [dot.x for dot in dots] + ([] if limit is None else [limit])
    low, high = min(sides), max(sides)
    across = (
        Axis(max(1e-3, low * 0.9), high * 1.1, _LEFT, _WIDTH - _RIGHT, log=True) if high > 8 * low > 0 else _even(low, high)
    )
    up = Axis(0.0, max(dot.y for dot in dots) * 1.08 or 1.0, _HEIGHT - _BOTTOM, _TOP)
    lines = (
        [] if limit is None else [f'<path class="s c3 d" d="M{across.place(limit):.1f} {_TOP:.0f}V{_HEIGHT - _BOTTOM:.0f}"/>']
    )
    if len(path) > 1:
        steps = "L".join(f"{across.place(dot.x):.1f} {up.place(dot.y):.1f}" for dot in path)
        lines.append(f'<path class="s c5 d" d="M{steps}"/>')
    drawn = "".join(
        f'<circle class="f {dot.color}" cx="{across.place(dot.x):.1f}" cy="{up.place(dot.y):.1f}" r="{dot.radius:g}">'
        f"<title>{escape(dot.told)}</title></circle>"
        for dot in dots
    )
    return _svg(f"{y} against {x}", _grid(across, up, x=x, y=y) + "".join(lines) + drawn) + legend(names)


def _even(low: float, high: float) -> Axis:
    """From 0, or where all lie far from it from a little below the lowest."""
    return Axis(low * 0.9 if low > 0.4 * high else 0.0, high * 1.08 or 1.0, _LEFT, _WIDTH - _RIGHT)


def heat_map(
    cells: Mapping[tuple[str, str], float],
    *,
    columns: Sequence[str],
    rows: Sequence[str],
    x: str,
    y: str,
    best: tuple[str, str],
) -> str:
    """A value per (column, row), the darker the higher; `best` has a frame. Where there is none the cell stays empty."""
    if not cells:
        return ""
    wide, high = (_WIDTH - _LEFT - _RIGHT) / len(columns), (_HEIGHT - _BOTTOM - _TOP) / len(rows)
    most = max(cells.values()) or 1.0
    drawn = []
    for (column, row), value in cells.items():
        left, top = _LEFT + columns.index(column) * wide, _TOP + (len(rows) - 1 - rows.index(row)) * high
        shape = f'x="{left + 1:.1f}" y="{top + 1:.1f}" width="{wide - 2:.1f}" height="{high - 2:.1f}" rx="2"'
        told = escape(f"{x} {column}, {y} {row}: {number(value)}")
        drawn.append(f'<rect class="f c0" fill-opacity="{0.1 + 0.5 * value / most:.2f}" {shape}><title>{told}</title></rect>')
        if (column, row) == best:
            drawn.append(f'<rect class="o c1" {shape}/>')
        if wide >= _LEAST_WORDED:
            drawn.append(_text(left + wide / 2, top + high / 2 + 4, number(value), "middle", look="v"))
    marks = [_text(_LEFT + (at + 0.5) * wide, _HEIGHT - _BOTTOM + 13, name, "middle") for at, name in enumerate(columns)]
    marks += [_text(_LEFT - 5, _TOP + (len(rows) - at - 0.5) * high + 4, name, "end") for at, name in enumerate(rows)]
    body = "".join(drawn) + "".join(marks) + _text((_LEFT + _WIDTH) / 2, _HEIGHT - 4, x, "middle") + _upright(y)
    return _svg(f"by {x} and {y}", body)


def legend(names: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><span class="k {color}"></span>{escape(name)}</li>' for name, color in names)
    return f'<ul class="legend">{items}</ul>'


def _grid(across: Axis, up: Axis, *, x: str, y: str) -> str:
    floor = _HEIGHT - _BOTTOM
    marks = "".join(_mark(across.place(at), floor + 13, number(at)) for at in across.ticks())
    return _rows(up, y) + marks + _text((_LEFT + _WIDTH) / 2, _HEIGHT - 4, x, "middle")


def _rows(up: Axis, y: str) -> str:
    lines = []
    for value in up.ticks():
        at = up.place(value)
        lines.append(f'<path class="g" d="M{_LEFT:.0f} {at:.1f}H{_WIDTH - _RIGHT:.0f}"/>')
        lines.append(_text(_LEFT - 5, at + 3.5, number(value), "end"))
    return "".join(lines) + _upright(y)


def _upright(name: str) -> str:
    """Beside the axis that goes up."""
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return f'<text x="10" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 10 {middle:.0f})">{escape(name)}</text>'


def _mark(x: float, y: float, text: str) -> str:
    """Near the right edge it ends there instead of being cut."""
    near = x + len(text) * 3.2 > _WIDTH
    return _text(_WIDTH if near else x, y, text, "end" if near else "middle")


def _text(x: float, y: float, text: str, anchor: str, *, look: str = "") -> str:
    named = f' class="{look}"' if look else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(name: str, body: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{escape(name)}">{body}</svg>'
