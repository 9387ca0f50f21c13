"""Every picture that README and docs show, by its path, and what it is made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.images import concepts, draw
from tests.faults.soak import picture as soak

ROOT = Path(__file__).parents[2]
_RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True, slots=True)
class Photograph:
    """A page of a running stack. `path`: its address there, where `{job}` is a job that ended, and `{model}` a busy model."""

    path: str
    # Which server: the gateway's dashboard, Flower or Prometheus.
    server: str = "dashboard"
    height: int = 600
    # What must be on the page before the picture is taken.
    awaited: str = "main"


def _soak() -> str:
    return soak.draw(json.loads((_RESULTS / "soak.json").read_text("utf-8")))


# By a function that draws them from what is in the tree.
DRAWN: Mapping[str, Callable[[], str]] = {
    "docs/images/concepts.svg": concepts.concepts,
    "docs/images/house.svg": draw.house,
    "docs/images/job.svg": draw.job,
    "docs/measurements/soak.svg": _soak,
}
# By a measurement that takes minutes, together with its figures.
MEASURED: Mapping[str, str] = {"docs/images/autoscale.svg": "make scale"}
PHOTOGRAPHED: Mapping[str, Photograph] = {
    "docs/images/dashboard-queues.png": Photograph("/", height=480),
    "docs/images/dashboard-job.png": Photograph("/ui/jobs/{job}", height=700),
    "docs/images/dashboard-failed.png": Photograph("/ui/failed", height=520),
    "docs/images/flower-queues.png": Photograph("/broker", "flower", 560, "body"),
    "docs/images/prometheus-depth.png": Photograph(
        "/classic/graph?g0.expr=penstock_queue_depth&g0.tab=0&g0.range_input=20s", "prometheus", 640, "body"
    ),
}
# Terminals: a page whose consoles are recorded, or the commands themselves.
RECORDED: Mapping[str, str] = {
    "docs/images/five-minutes.svg": "docs/start/five-minutes.md",
    "docs/images/bench.svg": "penstock bench square --rate 50 --duration 3 --warm-up 1",
    "docs/images/tune.svg": "penstock tune examples/square.py --slo p99=1s --budget 10s",
}
