"""What one drill gets and gives, and the figures of all drills with their targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from benchmarks.measured_figure import MeasuredFigure


@dataclass(frozen=True, slots=True)
class DrillSetting:
    """`folder`: empty and on a real disk. `quick`: a tenth of the rounds, to see whether the drill works."""

    folder: Path
    quick: bool
    say: Callable[[str], None]

    def rounds(self, full: int) -> int:
        return max(1, full // 10) if self.quick else full


@dataclass(slots=True)
class DrillResult:
    """`figures`: by the names of `FIGURES`. `detail`: what they were computed from."""

    figures: dict[str, float]
    detail: dict[str, Any] = field(default_factory=dict)


Drill = Callable[[DrillSetting], DrillResult]

# Each module has a function `measure`. Drills are loaded when they run, because each needs other parts of penstock.
DRILLS: dict[str, str] = {
    "cluster": "cluster",
    "cluster_capacity": "cluster_capacity",
    "failover": "failover",
    "autoscale": "autoscale",
    "host_loss": "host_loss",
    "run_drivers": "run_drivers",
}

FIGURES: tuple[MeasuredFigure, ...] = (
    MeasuredFigure("host_loss_lost", "jobs lost with one of two worker hosts", 0.0, at_least=False),
    MeasuredFigure("host_loss_changed", "ends that changed when the lost host was there again", 0.0, at_least=False),
    MeasuredFigure("host_loss_begun_again_s", "killed: seconds until its jobs are claimed anew, at most", 3.0, at_least=False),
    MeasuredFigure(
        "host_loss_silent_begun_again_s", "cut off: the same, with the lease of 15 s that has to end", 18.0, at_least=False
    ),
    MeasuredFigure("gateway_loss_errors", "errors of clients that repeat when a gateway host is lost", 0.0, at_least=False),
    MeasuredFigure("gateway_loss_silent_wait_s", "cut off: the longest that one of them waited for a result", None),
    MeasuredFigure("cluster_lost", "accepted jobs lost: primaries of a cluster killed, slots moved", 0, at_least=False),
    MeasuredFigure("cluster_recover_s", "seconds from a promotion to the next 202, the lost node back", 5, at_least=False),
    MeasuredFigure("failover_lost", "accepted jobs lost with primaries and their disks, replicated", 0, at_least=False),
    MeasuredFigure("failover_recover_s", "seconds from a promotion to the next 202", 5, at_least=False),
    MeasuredFigure("failover_local_lost", "the same losses with durability local", None),
    MeasuredFigure("run_drivers_ratio", "rows of a cheap model per CPU second of the busiest driver: two against one", 1.7),
    MeasuredFigure(
        "autoscale_late_s", "a burst: seconds from goal passed to a second slot, less its start", 5.0, at_least=False
    ),
    MeasuredFigure("autoscale_slots_after", "slots after it", 1.0, at_least=False),
    MeasuredFigure("autoscale_lost", "jobs lost while slots came and went", 0.0, at_least=False),
    MeasuredFigure("autoscale_redelivered", "jobs given back by slots that went", 0.0, at_least=False),
    MeasuredFigure("autoscale_loads_per_minute", "two models with room for one, jobs for both", 2.0, at_least=False),
    MeasuredFigure("cluster_ratio", "no-op: what two primaries of a cluster carry, in units of one server", 1.7),
    MeasuredFigure("cluster_accel", "accelerator: what two primaries of a cluster carry, in units of one server", 1.7),
    MeasuredFigure("cluster_partition_ratio", "no-op: one model on two primaries, in units of one server", 1.7),
    MeasuredFigure("cluster_partition_accel", "accelerator: one model on two primaries, in units of one server", 1.7),
)


def load_drill(name: str) -> Drill:
    return cast("Drill", import_module(f"benchmarks.scale.{DRILLS[name]}").measure)
