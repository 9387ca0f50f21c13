"""The cost of log lines about single jobs: the no-op model over HTTP with `log.jobs` off, problems and all, in turns.

`python -m benchmarks.experiments.log_cost [--seconds 5] [--rounds 2] [--state-dir FOLDER]`. The rate depends on other load on
the machine; CPU per request is steadier, and its ratio to `off` is the figure that counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import check_answers, post_plan
from benchmarks.stack import StackPlan, whole_stack
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.observed.costs import per_request_us
from penstock.loadtest.stack import free_port
from penstock.logs import JobLines

_CONNECTIONS = 64
_WARM_S = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    rps: float
    cpu_us: float


def measure(folder: Path, lines: JobLines, seconds: float) -> Reading:
    """A new stack under a closed loop; the client's CPU time does not count."""
    plan = StackPlan(folder, free_port())
    with whole_stack(plan, {"PENSTOCK_LOG__JOBS": lines.value}) as processes:
        load = post_plan(f"{plan.url}/predictions/noop", NOOP_BODY, connections=_CONNECTIONS, duration_s=_WARM_S)
        run_load(load)
        before = processes.read_cpu()
        report = run_load(post_plan(f"{plan.url}/predictions/noop", NOOP_BODY, connections=_CONNECTIONS, duration_s=seconds))
        costs = per_request_us(processes.read_cpu().since(before), report.summary.count)
        check_answers(lines.value, report)
    return Reading(report.summary.rps, costs["total"] - costs.get("client", 0.0))


def table(found: dict[JobLines, list[Reading]]) -> list[str]:
    """One line per setting: medians, and the ratios to `off`."""
    middle = {lines: (median(r.rps for r in all_), median(r.cpu_us for r in all_)) for lines, all_ in found.items()}
    off_rps, off_us = middle[JobLines.OFF]
    return [
        f"{lines.value:<9} {rps:>7,.0f}/s ({rps / off_rps:.3f} of off)   {us:>6.1f} us CPU a request ({us / off_us:.3f} of off)"
        for lines, (rps, us) in middle.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.log_cost", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--state-dir", default=None, help="where the stores keep their files (default: the temp folder)")
    options = parser.parse_args(arguments)
    found: dict[JobLines, list[Reading]] = {lines: [] for lines in (JobLines.OFF, JobLines.PROBLEMS, JobLines.ALL)}
    with tempfile.TemporaryDirectory(prefix="penstock-logs-", dir=options.state_dir) as folder:
        for number in range(options.rounds):
            # In turns, so that a machine whose speed drifts slows all settings equally.
            for lines, readings in found.items():
                readings.append(measure(Path(folder) / f"{lines.value}{number}", lines, options.seconds))
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
