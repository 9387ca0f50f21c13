"""Compares working trees: the same load on a stack of each, in turns of a second, so that a drift slows all equally.

`python -m benchmarks.experiments.side_by_side TREE TREE ... [--turns 12] [--connections 64] [--path PATH] [--body BYTES]`:
prints the medians of rates and CPU per request; `ratio` is the median of each turn's rate divided by that of the first tree.
A TREE is a checkout; its `src` (formerly `.typing`) holds the package. Settings may follow, which also compares a tree with
itself:
`.,PENSTOCK_STORE__INLINE_INPUT_BYTES=65536`.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.main_path.http_figures import NOOP_BODY, random_body
from benchmarks.session import MeasuringSession, check_answers, post_plan
from benchmarks.stack import whole_stack
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.observed.costs import CpuReading, per_request_us, read_cpu
from penstock.loadtest.stack import Processes

_WARM_UP_S = 2.0
# The modules that earlier trees start.
_EARLIER_MODULES = {"penstock.gateway.server": "gateway", "penstock.workers.main": "worker"}
_STAGES = ("gateway", "redis", "worker", "child", "total")


@dataclass(frozen=True, slots=True)
class TreeSide:
    """One tree's stack and the figures of its turns. `costs`: microseconds per request by stage."""

    name: str
    url: str
    processes: Processes
    body: RequestBody
    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    costs: list[dict[str, float]] = field(default_factory=list)

    def turn(self, *, connections: int, seconds: float) -> None:
        before = self._read_cpu()
        report = run_load(post_plan(self.url, self.body, connections=connections, duration_s=seconds))
        check_answers(self.name, report)
        self.rates.append(report.summary.rps)
        self.p50_ms.append(report.summary.p50_ms)
        self.costs.append(per_request_us(self._read_cpu().since(before), report.summary.count))

    def _read_cpu(self) -> CpuReading:
        return read_cpu(self.processes.pids, others=_EARLIER_MODULES)

    def report_line(self, first: TreeSide) -> str:
        ratio = statistics.median(mine / other for mine, other in zip(self.rates, first.rates, strict=True))
        costs = ", ".join(f"{stage} {statistics.median(cost[stage] for cost in self.costs):.0f}" for stage in _STAGES)
        rate, p50 = statistics.median(self.rates), statistics.median(self.p50_ms)
        return f"{self.name}: {rate:,.0f}/s, ratio {ratio:.3f}, p50 {p50:.2f} ms; us per request: {costs}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="+")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--path", default="/predictions/noop", help="the path of requests: /v1/models/noop/jobs only submits")
    parser.add_argument(
        "--body", type=int, default=0, metavar="BYTES", help="size of a body of random bytes, for accel (default: a small JSON)"
    )
    options = parser.parse_args(arguments)
    body = random_body(options.body) if options.body else NOOP_BODY
    with tempfile.TemporaryDirectory(prefix="penstock-sides-") as folder, contextlib.ExitStack() as stack:
        sides = [
            _side(tree, Path(folder) / str(number), stack, path=options.path, body=body)
            for number, tree in enumerate(options.trees)
        ]
        for side in sides:
            run_load(post_plan(side.url, side.body, connections=options.connections, duration_s=_WARM_UP_S))
        for turn in range(options.turns):
            # Each tree goes first equally often.
            for place in range(len(sides)):
                sides[(turn + place) % len(sides)].turn(connections=options.connections, seconds=options.seconds)
                time.sleep(0.05)
        for side in sides:
            print(side.report_line(sides[0]))


def _side(name: str, folder: Path, stack: contextlib.ExitStack, *, path: str, body: RequestBody) -> TreeSide:
    folder.mkdir()
    place, *settings = name.split(",")
    tree = Path(place).resolve()
    plan = MeasuringSession(folder, seconds=1.0, deep_jobs=0, say=print).stack_plan("noop")
    links = next(folder for folder in (tree / "src", tree / ".typing") if folder.is_dir())
    variables = {"PYTHONPATH": f"{links}:{tree}", **dict(setting.split("=", 1) for setting in settings)}
    return TreeSide(name, f"{plan.url}{path}", stack.enter_context(whole_stack(plan, variables)), body)


if __name__ == "__main__":
    main()
