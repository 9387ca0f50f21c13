"""One measuring session: the length of loads, the place of results, and how a load is run, billed and recorded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.report import Findings
from benchmarks.stack import StackPlan
from penstock.errors import PenstockError
from penstock.loadtest.generator.connection import RequestBody, parse_target, request_bytes
from penstock.loadtest.generator.load import LoadReport, LoadSpec, run_load
from penstock.loadtest.observed.costs import per_request_us, read_machine
from penstock.loadtest.stack import Processes, free_port

_FOREIGN_SHARE = 0.10
_BAD_SHARE = 0.01  # with more errors than this, a closed loop measures errors


@dataclass(slots=True)
class MeasuringSession:
    """`seconds`: the length of one load. `deep_jobs`: the depth of a deep queue."""

    folder: Path
    seconds: float
    deep_jobs: int
    say: Callable[[str], None]
    findings: Findings = field(default_factory=Findings)

    def stack_plan(self, name: str, *, fsync: str = "always") -> StackPlan:
        return StackPlan(self.folder / name, free_port(), fsync)

    def load(self, name: str, processes: Processes, plan: LoadSpec) -> LoadReport:
        """Runs one load against a started stack, after a short warm-up; its CPU time and figures become findings."""
        self._warm_up(name, plan)
        before, machine = processes.read_cpu(), read_machine()
        report = run_load(plan)
        spent = processes.read_cpu().since(before)
        foreign = read_machine().foreign_share(machine, sum(spent.values()))
        processes.check()
        self._note(name, report, spent)
        self.note_foreign(name, foreign)
        if plan.rate is None:
            check_answers(name, report)
        return report

    def _warm_up(self, name: str, plan: LoadSpec) -> None:
        """Runs a short closed loop. With a deadline, late answers are expected, and only missing answers are an error."""
        few = 32 if plan.rate else 64
        report = run_load(
            replace(plan, duration_s=min(2.0, plan.duration_s), rate=None, connections=min(plan.connections, few))
        )
        if math.isinf(plan.deadline_s) or not report.summary.count:
            check_answers(name, report)

    def _note(self, name: str, report: LoadReport, spent: dict[str, float]) -> None:
        answers = report.summary.count
        self.say(f"{name}: {report.summary.rps:,.0f}/s, p50 {report.summary.p50_ms:.2f} ms, p99 {report.summary.p99_ms:.2f} ms")
        self.findings.detail[name] = {key: value for key, value in asdict(report).items() if key != "latencies_s"}
        self.findings.detail[name]["cpu_s"] = spent
        self.findings.cost(name, per_request_us(spent, answers))
        self.findings.doubts += [f"{name}: {limit}" for limit in report.limits]
        if report.unfinished:
            self.findings.doubts.append(f"{name}: {report.unfinished} requests had no answer when the run ended")

    def note_foreign(self, name: str, share: float) -> None:
        """Other processes make every figure worse; beyond a tenth of the machine, the run should be repeated."""
        self.findings.detail[name]["foreign_cpu_share"] = share
        if share > _FOREIGN_SHARE:
            self.findings.doubts.append(f"{name}: other processes took {share:.0%} of the machine's CPU meanwhile")


def check_answers(name: str, report: LoadReport) -> None:
    """Raises `PenstockError` if too many answers are errors, because the figures would be those of the error path."""
    bad = sum(report.summary.errors.values())
    if report.summary.count == 0 or bad > report.summary.count * _BAD_SHARE:
        raise PenstockError(f"{name}: {bad} errors, {report.summary.count} answers: {report.summary.errors}; {report.bodies}")


def post_plan(url: str, body: RequestBody, *, connections: int, duration_s: float, deadline_s: float = math.inf) -> LoadSpec:
    """A closed loop that repeats one POST; `replace(plan, rate=...)` makes it an open loop."""
    target = parse_target(url)
    request = request_bytes(target, method="POST", body=body.data, headers={"Content-Type": body.content_type})
    return LoadSpec(target, itertools.repeat(request), connections=connections, duration_s=duration_s, deadline_s=deadline_s)
