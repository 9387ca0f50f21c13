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
    """A page of a running stack. `path`: its address there, where `{job}` is a job that ended, `{run}` a run that did, and
    `{model}` a busy model.
    """

    path: str
    # Which server: the gateway's dashboard, Flower or Prometheus.
    server: str = "dashboard"
    height: int = 600
    # What must be on the page before the picture is taken.
    awaited: str = "main"
    # What is clicked before.
    clicked: str = ""
    # The element that is taken, instead of what a screen shows of the page.
    part: str = ""
    settles_ms: int = 500
    # How long jobs must have run.
    after_s: float = 0.0


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
    "docs/images/dashboard-curve.png": Photograph("/ui/models/scores", awaited=".card:has(.curve)", part=".card:has(.curve)"),
    "docs/images/dashboard-errors.png": Photograph("/ui/models/thumbnails", awaited="#errors", part="#errors"),
    "docs/images/dashboard-operate.png": Photograph("/ui/models/{model}", clicked="#operate summary", part="#operate"),
    "docs/images/dashboard-jobs.png": Photograph("/ui/jobs", height=480),
    "docs/images/dashboard-job.png": Photograph("/ui/jobs/{job}", height=700),
    "docs/images/dashboard-runs.png": Photograph("/ui/runs", height=250),
    "docs/images/dashboard-run.png": Photograph("/ui/runs/{run}", height=560),
    "docs/images/dashboard-try.png": Photograph("/ui/models/objects/try/1", height=640),
    "docs/images/dashboard-failed.png": Photograph("/ui/failed", height=520),
    "docs/images/dashboard-webhooks.png": Photograph("/ui/webhooks", height=360),
    "docs/images/dashboard-workers.png": Photograph("/ui/workers", height=560),
    "docs/images/dashboard-audit.png": Photograph("/ui/audit", height=400),
    "docs/images/dashboard-api.png": Photograph("/ui/api", height=560),
    "docs/images/dashboard-docs.png": Photograph(
        "/docs", height=640, awaited="#swagger .opblock-tag", clicked="[data-tag=models] .expand-operation"
    ),
    # Behind the others, so that the lines of the last minutes are lines.
    "docs/images/dashboard-queues.png": Photograph("/", height=480, awaited="#history figure"),
    "docs/images/dashboard-model.png": Photograph(
        "/ui/models/{model}?span=5m", height=720, awaited="#history figure", after_s=100.0
    ),
    "docs/images/dashboard-history.png": Photograph("/?span=5m", awaited="#history .charts", part="#history", after_s=100.0),
    "docs/images/flower-queues.png": Photograph("/broker", "flower", 560, "body", settles_ms=2_500),
    "docs/images/prometheus-depth.png": Photograph(
        "/classic/graph?g0.expr=penstock_queue_depth&g0.tab=0&g0.range_input=20s", "prometheus", 640, "body", settles_ms=2_500
    ),
}
# Terminals: a page whose consoles are recorded, or the commands themselves.
RECORDED: Mapping[str, str] = {
    "docs/images/five-minutes.svg": "docs/start/five-minutes.md",
    "docs/images/bench.svg": "penstock bench square --rate 50 --duration 3 --warm-up 1",
    "docs/images/tune.svg": "penstock tune examples/square.py --slo p99=1s --budget 10s",
}
