"""The figures of a lone request's way, and the tables of docs/measurements/lone_path.md made of them."""

from __future__ import annotations

import os
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.lone_path.stamping import Mark
from benchmarks.experiments.lone_path.steps import Asked, rows, way
from penstock.errors import PenstockError
from penstock.loadtest.observed.machine import now

_BEGINS = "<!-- lone path: python -m benchmarks.experiments.lone_path --docs -->"
_ENDS = "<!-- end -->"
_WIDTH = 120
# The steps must add up to what the client saw, but for this share.
AGREES = 0.10
_BUSY = 0.10


def report(
    found: Mapping[str, Sequence[Asked]], *, functions: Mapping[str, float], stamps: Mapping[Mark, Sequence[int]]
) -> dict[str, Any]:
    """`found`: requests to the stack with stamps (`stamped`), to the one without (`plain`), empty ones, and writes."""
    pairs = [(asked, taken) for asked in found["stamped"] if (taken := way(asked, stamps)) is not None]
    if not pairs:
        raise PenstockError("no request was handed over to a slot, so the steps are not known")
    steps = rows([taken for _, taken in pairs], [asked for asked, _ in pairs], functions)
    return {
        "measured_at": now(),
        "cores": os.cpu_count(),
        "requests": len(found["stamped"]),
        "followed": len(pairs),
        "p50_us": {name: round(_p50_us(asked), 1) for name, asked in found.items()},
        "sum_us": round(sum(row.us for row in steps), 1),
        "rows": [{"where": row.where, "what": row.what, "us": round(row.us, 1)} for row in steps],
    }


def _p50_us(asked: Sequence[Asked]) -> float:
    return statistics.median(one.got - one.sent for one in asked) / 1e3


def is_sound(told: Mapping[str, Any]) -> bool:
    """Whether the steps add up."""
    whole = told["p50_us"]["stamped"]
    return bool(abs(told["sum_us"] - whole) <= AGREES * whole)


def markdown(told: Mapping[str, Any]) -> str:
    """The circumstances and both tables."""
    wrapped = [textwrap.fill(f"- {fact}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for fact in _facts(told)]
    spent = Counter[str]()
    for row in told["rows"]:
        spent[row["where"]] += row["us"]
    shares = [f"| {where} | {us:,.0f} | {us / told['sum_us']:.0%} |" for where, us in spent.most_common()]
    steps = [f"| {n} | {row['where']} | {row['what']} | {row['us']:,.0f} |" for n, row in enumerate(told["rows"], 1)]
    steps.append(f"| | | all steps | {told['sum_us']:,.0f} |")
    tables = ["| | where | step | us |", "|---|---|---|---|", *steps, "", "| where | us | share |", "|---|---|---|", *shares]
    return "\n".join([*wrapped, "", *tables])


def _facts(told: Mapping[str, Any]) -> Iterator[str]:
    p50 = told["p50_us"]
    busy, floor = told["foreign_cpu_share"], p50["empty"] + p50["write"]
    note = "; **the machine was busy, so the figures are too high**" if busy > _BUSY else ""
    yield f"measured {told['measured_at'][:10]} on {told['cores']} cores; other programs took {busy:.0%} of them{note}"
    rest = f"{told['pause_ms']:g} ms of rest before each"
    yield f"{told['requests']:,} requests, {rest}; {told['followed']:,} were handed over by their submit, and are shown"
    differs = f"{told['sum_us'] / p50['stamped'] - 1:+.1%}"
    yield f"the client waited {p50['stamped']:,.0f} us (p50), and the steps add up to {told['sum_us']:,.0f} us, {differs}"
    yield f"without stamps it waited {p50['plain']:,.0f} us: the stamps cost {p50['stamped'] / p50['plain'] - 1:+.1%}"
    parts = f"an empty request takes {p50['empty']:,.0f} us, a synced write {p50['write']:,.0f} us"
    yield f"the floor: {parts}; a prediction takes {p50['plain'] / floor:.2f} times both together"


def put_into(page: Path, told: Mapping[str, Any]) -> None:
    """Replace what stands between the marks of the page."""
    head, mark, rest = page.read_text().partition(f"{_BEGINS}\n")
    _, end, tail = rest.partition(_ENDS)
    page.write_text(f"{head}{mark}\n{markdown(told)}\n\n{end}{tail}")
