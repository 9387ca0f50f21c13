"""Draws a burst as two charts above each other: the backlog in seconds, and the slots that are ready. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WIDE, _HIGH, _LEFT, _RIGHT = 720, 150, 56, 16
_TOP, _GAP, _BOTTOM = 34, 46, 34
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.dim{fill:#666;font-size:11px}rect{fill:#f6f8fa;stroke:#d0d7de}"
    ".burst{fill:#1f6feb;fill-opacity:.08;stroke:none}polyline{fill:none;stroke-width:1.8}"
    ".backlog{stroke:#cf222e}.slots{stroke:#1f6feb}.goal{stroke:#666;stroke-dasharray:5 4}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.dim{fill:#999}rect{fill:#161b22;stroke:#30363d}"
    ".backlog{stroke:#ff7b72}.slots{stroke:#58a6ff}}"
)


def draw(burst: Mapping[str, Any]) -> str:
    """`burst`: the detail of the drill. Each chart begins at zero."""
    samples: Sequence[Sequence[float]] = burst["samples"]
    ends = max(sample[0] for sample in samples)
    height = _TOP + 2 * _HIGH + _GAP + _BOTTOM
    marks = [
        *_chart("Backlog in seconds", "backlog", [(at, value) for at, value, _ in samples], _TOP, ends, burst),
        *_goal(burst["goal_s"], samples, ends),
        *_chart("Ready slots", "slots", _steps(samples), _TOP + _HIGH + _GAP, ends, burst),
        *(_word(_x(at, ends), height - 14, f"{at:g} s", "dim") for at in range(0, int(ends) + 1, 15)),
    ]
    size = f'width="{_WIDE}" height="{height}" viewBox="0 0 {_WIDE} {height}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>", *marks, "</svg>\n"])


def _chart(
    name: str, look: str, points: Sequence[tuple[float, float]], top: float, ends: float, burst: Mapping[str, Any]
) -> Iterator[str]:
    most = _most(points)
    yield _word(_LEFT, top - 10, name)
    yield f'<rect x="{_LEFT}" y="{top}" width="{_WIDE - _LEFT - _RIGHT}" height="{_HIGH}"/>'
    yield f'<rect class="burst" x="{_LEFT}" y="{top}" width="{_x(burst["burst_s"], ends) - _LEFT:.1f}" height="{_HIGH}"/>'
    yield _word(_LEFT - 46, top + 12, f"{most:g}", "dim")
    yield _word(_LEFT - 46, top + _HIGH, "0", "dim")
    yield f'<polyline class="{look}" points="{_line(points, top, ends, most)}"/>'


def _goal(goal_s: float, samples: Sequence[Sequence[float]], ends: float) -> Iterator[str]:
    most = _most([(at, value) for at, value, _ in samples])
    yield f'<polyline class="goal" points="{_line([(0.0, goal_s), (ends, goal_s)], _TOP, ends, most)}"/>'
    yield _word(_WIDE - 120, _TOP + _HIGH * (1 - goal_s / most) - 4, f"goal: {goal_s:g} s", "dim")


def _steps(samples: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for at, _, ready in samples:
        points += [(at, points[-1][1])] if points and points[-1][1] != ready else []
        points.append((at, ready))
    return points


def _most(points: Sequence[tuple[float, float]]) -> float:
    return float(max(1, -(-max(value for _, value in points) * 1.1 // 1)))


def _line(points: Sequence[tuple[float, float]], top: float, ends: float, most: float) -> str:
    return " ".join(f"{_x(at, ends):.1f},{top + _HIGH * (1 - value / most):.1f}" for at, value in points)


def _x(at: float, ends: float) -> float:
    return _LEFT + (_WIDE - _LEFT - _RIGHT) * min(at, ends) / ends


def _word(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{f" class={chr(34)}{look}{chr(34)}" if look else ""}>{text}</text>'
