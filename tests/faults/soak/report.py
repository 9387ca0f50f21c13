"""The verdict of a soak as JSON: the slope of every quantity with its noise, and the points that a picture needs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.soak.sampling import QUANTITIES
from tests.faults.soak.slopes import Point, Slope, slope_of

_MOST_POINTS = 240
_WIDTH = 120
_BEGINS = "<!-- soak: python -m tests.faults.soak --docs -->"
_ENDS = "<!-- end -->"
NOT_YET = "This tree has not been measured yet."
Series = Mapping[tuple[str, str], Mapping[int, Sequence[Point]]]


def settled(group: Sequence[Point], warm_s: float) -> list[Point]:
    """Return the points of one process without its own warm-up, and without that of the whole soak."""
    since = max(warm_s, group[0][0] + warm_s / 2)
    return [point for point in group if point[0] >= since]


def row(quantity: str, role: str, groups: Mapping[int, Sequence[Point]], warm_s: float) -> dict[str, Any]:
    unit, step = QUANTITIES[quantity]
    kept = [settled(group, warm_s) for group in groups.values()]
    slope = slope_of([group for group in kept if group], step=step)
    points = [[[at, value] for at, value in _thinned(group)] for group in groups.values()]
    return {"quantity": quantity, "role": role, "unit": unit, **_figures(slope), "points": points}


def _figures(slope: Slope | None) -> dict[str, Any]:
    if slope is None:
        return {"level": None, "per_hour": None, "noise": None, "flat": None, "samples": 0}
    return {
        "level": round(slope.level, 2),
        "per_hour": round(slope.per_hour, 2),
        "noise": round(slope.noise, 2),
        "flat": slope.flat,
        "samples": slope.samples,
    }


def _thinned(group: Sequence[Point]) -> Sequence[Point]:
    return group[:: max(1, len(group) // _MOST_POINTS)]


def verdict(rows: Sequence[Mapping[str, Any]], complaints: Sequence[str]) -> str:
    """Return one sentence."""
    growing = [f"{row['quantity']} ({row['role']})" for row in rows if row["flat"] is False]
    if growing:
        return f"grows: {', '.join(growing)}"
    if complaints:
        return f"flat, but {len(complaints)} answers were wrong or unexpected"
    return "flat: no quantity grows by more than its noise"


def markdown(told: Mapping[str, Any]) -> str:
    """Return the saved report as the facts and the table of docs/measurements/soak.md."""
    share = told["right_per_s"] / told["offered_per_s"]
    kills = sum(told["kills"].values())
    rate = f"{told['right_per_s']:,g} answers per second, {share:.0%} of the {told['offered_per_s']:,g} offered"
    beside = f"{kills} kills, {sum(told['runs'].values())} runs, {sum(told['cancels'].values()):,} cancels"
    left = told.get("keys_left")
    after = (
        []
        if left is None
        else [f"- keys in the store: {told['keys_before']:,} before the load, {left:,} after it was collected"]
    )
    others = told["predictions_beside"]
    missed = f"{told['answers'].get('broken', 0):,} connections of the load failed or broke (a killed gateway breaks its own)"
    missed += f", and {others.get('broken', 0)} of the {sum(others.values()):,} predictions beside"
    facts = [
        f"- {told['minutes']:g} minutes on {told['cores']} cores: {rate}; {beside}",
        f"- {missed}",
        f"- verdict: **{told['verdict']}**",
        *after,
    ]
    lines = [f"| {' | '.join(_cells(row))} |" for row in told["rows"] if row["flat"] is not None]
    head = ["| quantity | of | mean | growth per hour | noise | |", "|---|---|---|---|---|---|"]
    wrapped = [textwrap.fill(fact, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for fact in facts]
    return "\n".join([*wrapped, "", *head, *lines, "", "![Every quantity of the soak against time](soak.svg)"])


def _cells(row: Mapping[str, Any]) -> list[str]:
    figures = [f"{shown(row['level'])} {row['unit']}", shown(row["per_hour"], "+"), shown(row["noise"])]
    return [row["quantity"], row["role"], *figures, "flat" if row["flat"] else "**grows**"]


def shown(value: float, sign: str = "") -> str:
    """Return a figure with as many digits as a reader needs."""
    return f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign},.1f}"


def put_into(page: Path, told: Mapping[str, Any]) -> None:
    """Replace what stands between the marks of the page."""
    head, mark, rest = page.read_text().partition(f"{_BEGINS}\n")
    _, end, tail = rest.partition(_ENDS)
    page.write_text(f"{head}{mark}\n{markdown(told)}\n\n{end}{tail}")


def write(path: Path, facts: Mapping[str, Any], series: Series, *, warm_s: float, complaints: Sequence[str]) -> dict[str, Any]:
    """Write the report, and return it."""
    rows = [row(quantity, role, groups, warm_s) for (quantity, role), groups in sorted(series.items())]
    told = {**facts, "verdict": verdict(rows, complaints), "complaints": list(complaints), "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, separators=(",", ":")).replace('{"quantity"', '\n{"quantity"') + "\n")
    return told
