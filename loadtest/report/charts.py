"""Charts as shapes, which a template writes as SVG, legible at the width of a phone. Colours are classes of the stylesheet.

SVG and not a charting library: the report needs no script, so it opens where scripts are forbidden (mail, artifacts of CI), it
prints in black on white from a dark screen, and every point shows its name on hover. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.loadtest.report.axes import (
    FLOOR,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Chart,
    Mark,
    across,
    circle,
    grid,
    label,
    levels,
    name_below,
    name_beside,
    rectangle,
    upward,
)
from penstock.words import number

_DOTS_UP_TO = 60
_WIDEST_BAR = 56.0
_LABEL_CHARACTER = 7.5
_STACK_HEIGHT = 34.0
# A narrower cell has no room for its number.
_LEAST_WORDED = 30.0


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One curve; None breaks it. `dashed` is for lines that only serve for comparison."""

    name: str
    color: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False


def line_chart(
    lines: Sequence[ChartLine], *, x: str, y: str, log_x: bool = False, top: float | None = None, left: float | None = None
) -> Chart | None:
    """`top` and `left` fix an end of y and x; otherwise these follow the data. None if there is nothing to draw."""
    points = [(at, value) for line in lines for at, value in line.points if value is not None]
    if not points:
        return None
    x_axis = _x_axis([at for at, _ in points] + ([] if left is None else [left]), log_x)
    y_axis = upward([value for _, value in points]) if top is None else upward([top], room=1.0)
    curves = [mark for line in lines for mark in _curve(line, x_axis, y_axis)]
    legend = [(line.name, line.color) for line in lines]
    return Chart(f"{y} against {x}", [*grid(x_axis, y_axis, x=x, y=y), *curves], legend)


def _x_axis(values: Sequence[float], log: bool) -> Axis:
    low, high = min(values), max(values)
    if log:
        low, high = max(low, 1e-3) * 0.97, high * 1.03
    return across(low, high if high > low else low + 1.0, log=log)


def _curve(line: ChartLine, x_axis: Axis, y_axis: Axis) -> list[Mark]:
    """The line and, if its points are few, a dot for each."""
    pen, path, dots = "M", [], []
    for at, value in line.points:
        if value is None:
            pen = "M"
            continue
        left, down = x_axis.position(at), y_axis.position(value)
        path.append(f"{pen}{left:.1f} {down:.1f}")
        dots.append(circle(f"f {line.color}", left, down, 2.2, f"{line.name}: {number(value)} at {number(at)}"))
        pen = "L"
    stroke = _stroke(line.color, "".join(path), dashed=line.dashed)
    return [stroke] if line.dashed or len(dots) > _DOTS_UP_TO else [stroke, *dots]


def _stroke(color: str, path: str, *, dashed: bool) -> Mark:
    return Mark("path", {"class": f"s {color} d" if dashed else f"s {color}", "d": path})


def bar_chart(bars: Sequence[tuple[str, float]], *, x: str, y: str) -> Chart | None:
    """One bar per pair, labelled below; only every nth bar has a label where labels would touch."""
    if not bars:
        return None
    y_axis = upward([value for _, value in bars])
    step = (RIGHT - LEFT) / len(bars)
    width = min(step * 0.8, _WIDEST_BAR)
    every = math.ceil(max(len(name) for name, _ in bars) * _LABEL_CHARACTER / step)
    marks = [*levels(y_axis, y), name_below(x)]
    for index, (name, value) in enumerate(bars):
        middle, high = LEFT + (index + 0.5) * step, y_axis.position(value)
        title = f"{name}: {number(value)}"
        marks.append(rectangle("f c0", middle - width / 2, high, width, FLOOR - high, title=title))
        if index % every == 0:
            marks.append(label(middle, FLOOR + 13, name, "middle"))
    return Chart(f"{y} by {x}", marks)


def stack(parts: Sequence[tuple[str, float]], *, words: Callable[[float], str]) -> Chart | None:
    """One bar cut into its parts, which the legend names."""
    whole = sum(value for _, value in parts)
    if whole <= 0.0:
        return None
    marks, legend, left = [], [], 0.0
    for index, (name, value) in enumerate(parts):
        width, color = value / whole * WIDTH, f"c{index}"
        marks.append(rectangle(f"f {color}", left, 0.0, width, _STACK_HEIGHT, title=f"{name}: {words(value)}"))
        legend.append((f"{name} {words(value)}, {value / whole:.0%}", color))
        left += width
    return Chart("parts of the whole", marks, legend, height=_STACK_HEIGHT)


@dataclass(frozen=True, slots=True)
class Dot:
    """One thing at (x, y); `title` is shown on hover."""

    x: float
    y: float
    color: str
    title: str
    radius: float = 3.0


def scatter(
    dots: Sequence[Dot],
    *,
    x: str,
    y: str,
    names: Sequence[tuple[str, str]],
    limit: float | None = None,
    path: Sequence[Dot] = (),
) -> Chart | None:
    """Things by two of their figures. `limit` is a vertical line, `path` joins the best; later dots lie on earlier ones."""
    if not dots:
        return None
    x_axis = _scatter_axis([dot.x for dot in dots] + ([] if limit is None else [limit]))
    y_axis = upward([dot.y for dot in dots], room=1.08)
    marks = grid(x_axis, y_axis, x=x, y=y)
    if limit is not None:
        marks.append(_stroke("c3", f"M{x_axis.position(limit):.1f} {TOP:.0f}V{FLOOR:.0f}", dashed=True))
    if len(path) > 1:
        steps = "L".join(f"{x_axis.position(dot.x):.1f} {y_axis.position(dot.y):.1f}" for dot in path)
        marks.append(_stroke("c5", f"M{steps}", dashed=True))
    marks += [circle(f"f {dot.color}", x_axis.position(dot.x), y_axis.position(dot.y), dot.radius, dot.title) for dot in dots]
    return Chart(f"{y} against {x}", marks, names)


def _scatter_axis(values: Sequence[float]) -> Axis:
    """Logarithmic over a wide range; otherwise from 0, or from a little below the lowest value if all are far from 0."""
    low, high = min(values), max(values)
    if high > 8 * low > 0:
        return across(max(1e-3, low * 0.9), high * 1.1, log=True)
    return across(low * 0.9 if low > 0.4 * high else 0.0, high * 1.08 or 1.0)


def heat_map(
    cells: Mapping[tuple[str, str], float],
    *,
    columns: Sequence[str],
    rows: Sequence[str],
    x: str,
    y: str,
    best: tuple[str, str],
) -> Chart | None:
    """A value per (column, row), the darker the higher; `best` has a frame. A cell without a value stays empty."""
    if not cells:
        return None
    width, height = (RIGHT - LEFT) / len(columns), (FLOOR - TOP) / len(rows)
    most = max(cells.values()) or 1.0
    marks = []
    for (column, row), value in cells.items():
        left, top = LEFT + columns.index(column) * width, TOP + (len(rows) - 1 - rows.index(row)) * height
        inside = (left + 1, top + 1, width - 2, height - 2)
        title, shade = f"{x} {column}, {y} {row}: {number(value)}", f"{0.1 + 0.5 * value / most:.2f}"
        marks.append(rectangle("f c0", *inside, title=title, rx="2", fill_opacity=shade))
        if (column, row) == best:
            marks.append(rectangle("o c1", *inside, rx="2"))
        if width >= _LEAST_WORDED:
            marks.append(label(left + width / 2, top + height / 2 + 4, number(value), "middle", look="v"))
    below = [label(LEFT + (at + 0.5) * width, FLOOR + 13, name, "middle") for at, name in enumerate(columns)]
    beside = [label(LEFT - 5, FLOOR - (at + 0.5) * height + 4, name, "end") for at, name in enumerate(rows)]
    return Chart(f"by {x} and {y}", [*marks, *below, *beside, name_below(x), name_beside(y)])
