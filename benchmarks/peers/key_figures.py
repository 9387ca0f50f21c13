"""The figures that a comparison stands for, with their targets: peers.json begins with them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.measured_figure import MeasuredFigure
from benchmarks.peers.catalogue import OWN, OWN_COST, OWN_PLAIN
from benchmarks.peers.workloads import ACCELERATOR, ACCELERATOR_100K, EMBEDDINGS, NOOP

Result = Mapping[str, Any]

KEY_FIGURES = (
    MeasuredFigure("noop_vs_torchserve", "no-op, 64 at once: rate over TorchServe's", 2.0),
    MeasuredFigure("cpu_us_per_noop", "no-op, 64 at once: CPU per request of all but the client, us", None, at_least=False),
    MeasuredFigure("accel_vs_mosec", "accelerator, 4 KiB, 64 at once: rate over Mosec's", 1.05),
    MeasuredFigure("accel_100k_vs_mosec", "accelerator, 100 KiB, 64 at once: rate over Mosec's", 1.0),
    MeasuredFigure("accel_100k_vs_torchserve", "the same over TorchServe's", None),
    MeasuredFigure("own_minilm_cost_vs_mosec", "MiniLM, own handler with `cost`: rate over Mosec's", None),
    MeasuredFigure("own_minilm_cost_vs_torchserve", "the same over TorchServe's", None),
    MeasuredFigure("own_minilm_plain_vs_mosec", "MiniLM, own handler that declares nothing: rate over Mosec's", None),
    MeasuredFigure("own_minilm_plain_vs_torchserve", "the same over TorchServe's", None),
)

_RATIOS = {
    "noop_vs_torchserve": (OWN, "torchserve", NOOP),
    "accel_vs_mosec": (OWN, "mosec", ACCELERATOR),
    "accel_100k_vs_mosec": (OWN, "mosec", ACCELERATOR_100K),
    "accel_100k_vs_torchserve": (OWN, "torchserve", ACCELERATOR_100K),
    "own_minilm_cost_vs_mosec": (OWN_COST, "mosec", EMBEDDINGS),
    "own_minilm_cost_vs_torchserve": (OWN_COST, "torchserve", EMBEDDINGS),
    "own_minilm_plain_vs_mosec": (OWN_PLAIN, "mosec", EMBEDDINGS),
    "own_minilm_plain_vs_torchserve": (OWN_PLAIN, "torchserve", EMBEDDINGS),
}


def measured(result: Result, name: str, workload: str) -> Mapping[str, Any] | None:
    """The figures of a server on a workload; None: there are none."""
    found: Mapping[str, Any] | None = result["peers"].get(name, {}).get("workloads", {}).get(workload)
    return found


def ratio(result: Result, peer: str, workload: str, *, own: str = OWN) -> float | None:
    """The rate of `own` divided by the peer's; None: one of them was not measured."""
    ours, theirs = measured(result, own, workload), measured(result, peer, workload)
    return ours["rps"] / theirs["rps"] if ours and theirs else None


def key_figures(result: Result) -> dict[str, float]:
    """Those whose servers and workloads were measured."""
    values = {name: ratio(result, peer, workload, own=own) for name, (own, peer, workload) in _RATIOS.items()}
    values["cpu_us_per_noop"] = (measured(result, OWN, NOOP) or {}).get("cpu_us")
    return {figure.name: round(value, 3) for figure in KEY_FIGURES if (value := values[figure.name]) is not None}
