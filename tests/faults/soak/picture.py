"""Draws the series of a soak as small charts, one per quantity and role: `python -m tests.faults.soak --picture`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from tests.faults.soak.report import shown

_COLUMNS = 3
_WIDE, _HIGH = 300, 130
_LEFT, _TOP, _RIGHT, _BOTTOM = 10, 34, 10, 18
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.dim{fill:#666;font-size:10px}"
    "polyline{fill:none;stroke:#1f6feb;stroke-width:1.3}rect{fill:#f6f8fa;stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.dim{fill:#999}rect{fill:#161b22;stroke:#30363d}polyline{stroke:#58a6ff}}"
)


def draw(report: Mapping[str, Any]) -> str:
    """Return the SVG. Each chart begins at zero, so that growth is seen against the level."""
    rows = report["rows"]
    lines = -(-len(rows) // _COLUMNS)
    size = f'width="{_COLUMNS * _WIDE}" height="{lines * _HIGH}" viewBox="0 0 {_COLUMNS * _WIDE} {lines * _HIGH}"'
    ends = max(point[0] for row in rows for group in row["points"] for point in group)
    charts = [mark for number, row in enumerate(rows) for mark in _chart(row, *_place(number), ends)]
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>", *charts, "</svg>\n"])


def _place(number: int) -> tuple[int, int]:
    return number % _COLUMNS * _WIDE, number // _COLUMNS * _HIGH


def _chart(row: Mapping[str, Any], x: int, y: int, ends: float) -> Iterator[str]:
    most = max(point[1] for group in row["points"] for point in group) or 1.0
    wide, high = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BOTTOM
    yield f'<text x="{x + _LEFT}" y="{y + 14}">{escape(row["role"])}: {escape(row["quantity"])}</text>'
    yield f'<text class="dim" x="{x + _LEFT}" y="{y + 27}">{escape(_told(row))}</text>'
    yield f'<rect x="{x + _LEFT}" y="{y + _TOP}" width="{wide}" height="{high}"/>'
    for group in row["points"]:
        yield f'<polyline points="{_line(group, x + _LEFT, y + _TOP, wide / ends, high, most)}"/>'
    axes = f"0 to {ends / 60:.0f} min; 0 to {shown(most)} {row['unit']}"
    yield f'<text class="dim" x="{x + _LEFT}" y="{y + _HIGH - 6}">{axes}</text>'


def _told(row: Mapping[str, Any]) -> str:
    if row["per_hour"] is None:
        return "too few samples for a slope"
    growth = f"{shown(row['per_hour'], '+')} {row['unit']} per hour, noise {shown(row['noise'])}"
    return f"{growth}: {'flat' if row['flat'] else 'grows'}"


def _line(group: Sequence[Sequence[float]], x: float, y: float, per_s: float, high: float, most: float) -> str:
    return " ".join(f"{x + at * per_s:.1f},{y + high * (1 - value / most / 1.05):.1f}" for at, value in group)
