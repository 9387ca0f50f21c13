"""The table of measured figures in docs/production/scale.md, which `python -m benchmarks.scale.page` writes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measured_figure import MeasuredFigure
from benchmarks.scale.drill import FIGURES
from benchmarks.torchserve.pages import write_between
from penstock.words import number

RESULTS = Path(__file__).resolve().parents[1] / "results" / "scale.json"
PAGE = RESULTS.parents[2] / "docs" / "production" / "scale.md"


def read_results() -> dict[str, Any]:
    return msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Any])


def figures_table(results: Mapping[str, Any]) -> str:
    """`results`: scale.json. A row per figure that was measured, in the order of `FIGURES`."""
    values = {name: value for drill in results.values() for name, value in drill["figures"].items()}
    jobs = accepted_jobs(results)
    rows = [_row(figure, values[figure.name], jobs.get(figure.name)) for figure in FIGURES if figure.name in values]
    return "\n".join(["| what | measured | asked for |", "|---|---|---|", *rows])


def accepted_jobs(results: Mapping[str, Any]) -> dict[str, int]:
    """Of how many accepted jobs those of a figure are, for the figures that count lost jobs of a store or a host."""
    details = {name: drill.get("detail", {}) for name, drill in results.items()}
    failover = details.get("failover", {})
    ends = {
        "failover_lost": failover.get("replicated", {}).get("ends", {}),
        "failover_local_lost": failover.get("local", {}).get("ends", {}),
        "cluster_lost": details.get("cluster", {}).get("ends", {}),
    }
    found = {name: sum(counts.values()) for name, counts in ends.items()}
    rounds = details.get("host_loss", {}).get("worker_hosts", {}).values()
    found["host_loss_lost"] = sum(each["jobs"] for ways in rounds for each in ways)
    return found


def _row(figure: MeasuredFigure, value: float, jobs: int | None) -> str:
    of = f" of {jobs:,}" if jobs else ""
    missed = "" if figure.met(value) else ", **missed**"
    asked = "" if figure.target is None else f"{figure.target_text()}{missed}"
    return f"| {figure.text} | {number(value)}{of} | {asked} |"


def main() -> int:
    write_between(PAGE, "figures: python -m benchmarks.scale.page", figures_table(read_results()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
