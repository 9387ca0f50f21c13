"""Checks `penstock tune`: a small space is searched twice, by a tuning and with every configuration under real load.

`python -m benchmarks.experiments.tune_check` takes about five minutes on an otherwise idle machine and writes
benchmarks/results/tune_check.json. The tuned configuration must come within 5 % of the best one of the exhaustive sweep, and
its second run within 10 % of the predicted throughput and p99.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.observed.machine import describe_machine
from penstock.model_spec import BatchPolicy, ModelSpec
from penstock.tune.question import TuneQuestion
from penstock.tune.result import Choice, Configuration, Figures, Goal, TuneResult
from penstock.tune.search import search
from penstock.tune.simulation.predict import StackModel, keeps_goal
from penstock.tune.space import checked
from penstock.tune.trial_stack import TuneEnvironment
from penstock.workers.devices.machine import discover

NEAR_BEST, NEAR_PREDICTED = 0.05, 0.10
# For a 2-core machine: at most two children with one thread each, which only sleep.
SPACE: dict[str, list[Any]] = {"batch_size": [1, 4, 16], "slots": [1, 2], "threads": [1], "max_wait_s": [0.0]}
GOAL = Goal(limit_s=0.3)
MODEL = Path(__file__).with_name("slow_device.py")
_BUDGET_S = 300.0
_LOAD_S, _WARM_UP_S = 3.0, 0.7
# Bisects between 60 % of the ceiling and the ceiling: four loads find the rate to 2.5 % of the ceiling.
_LOADS = 4
_BODY = RequestBody(b"penstock tune", "application/octet-stream")
_DEFAULT_OUT = Path(__file__).parents[1] / "results" / "tune_check.json"


def tune(spec: ModelSpec) -> TuneResult:
    question = TuneQuestion(spec, {"source": spec.source}, GOAL, discover(), checked(SPACE), (_BODY,), budget_s=_BUDGET_S)
    return search(question, lambda step, done, text: print(f"  {step}: {text}", flush=True))


def sweep(spec: ModelSpec, result: TuneResult, folder: Path) -> dict[Choice, float]:
    """The highest rate that each configuration carried under real load, without predictions."""
    environment = TuneEnvironment(folder, spec.name, spec.version, {"source": spec.source}, (_BODY,))
    return {one.choice: _carried(environment, one, result, number) for number, one in enumerate(result.configurations)}


def _carried(environment: TuneEnvironment, one: Configuration, result: TuneResult, number: int) -> float:
    choice = one.choice
    times = next(each.times for each in result.measured if (each.engine, each.slots) == (choice.engine, choice.slots))
    ceiling = StackModel(times, BatchPolicy(choice.batch_size, choice.max_wait_s), choice.slots).ceiling_rps()
    low, high = 0.6 * ceiling, ceiling
    carried = 0.0
    with environment.stack(choice, number=number) as stack:
        for load in range(_LOADS):
            rate = (low + high) / 2
            found = stack.offer(rate, GOAL, seconds=_LOAD_S, warm_up_s=_WARM_UP_S, seed=load + 1)
            kept = found.figures is not None and keeps_goal(found.figures, GOAL)
            carried = rate if kept else carried
            low, high = (rate, high) if kept else (low, rate)
    print(f"  swept: {choice.label}: {carried:.4g}/s", flush=True)
    return carried


def judge(result: TuneResult, carried: dict[Choice, float]) -> dict[str, Any]:
    """The figures that are compared with the bars, and whether they are within."""
    winner = result.winner
    if winner is None:
        return {"within": False, "why": "the tuning has no winner"}
    best = max(carried.values())
    behind = max(0.0, 1.0 - carried[winner.choice] / best) if best else 1.0
    off = _off(winner.predicted, winner.rerun)
    return {
        "within": behind <= NEAR_BEST and bool(off) and max(off.values()) <= NEAR_PREDICTED,
        "winner": winner.choice.label,
        "behind_best": round(behind, 4),
        "rerun_off_predicted": {name: round(value, 4) for name, value in off.items()},
        "confirmed_rps": winner.confirmed and round(winner.confirmed.offered_rps, 1),
        "visited": result.spent.confirmed,
        "configurations": result.spent.configurations,
    }


def _off(predicted: Figures | None, rerun: Figures | None) -> dict[str, float]:
    if predicted is None or rerun is None:
        return {}
    return {
        "throughput": abs(rerun.throughput_rps / predicted.throughput_rps - 1.0),
        "p99": abs(rerun.p99_ms / predicted.p99_ms - 1.0),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """0: both bars are found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.tune_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    spec = ModelSpec("slow-device", str(MODEL))
    result = tune(spec)
    folder = Path(tempfile.mkdtemp(prefix=".penstock-tune-", dir=Path.cwd()))
    try:
        carried = sweep(spec, result, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = {
        "bars": {"behind_best": NEAR_BEST, "rerun_off_predicted": NEAR_PREDICTED},
        **judge(result, carried),
        "swept_rps": {choice.label: round(rate, 1) for choice, rate in carried.items()},
        "seconds": round(time.monotonic() - began, 1),
        "notes": result.notes,
        "machine": describe_machine(),
    }
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{'within' if report['within'] else 'NOT within'} the bars; written: {options.out}")
    return 0 if report["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
