"""How many calls of functions one answer-now request costs the gateway's process.

The figure hardly depends on the machine's load or clock, so it shows a change of a few calls, which no time would.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.main_path import profiled
from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import MeasuringSession, check_answers, post_plan
from benchmarks.stack import whole_stack
from penstock.errors import PenstockError
from penstock.loadtest.generator.load import LoadSpec, run_load

_AT_ONCE = 64
_POLL_S, _MOST_S = 0.005, 10.0


@dataclass
class ProfiledGateway:
    """The gateway of a stack that counts its calls. Blocks of counting are numbered from 0."""

    folder: Path
    pid: int
    blocks: int = 0

    def calls_during(self, act: Callable[[], object]) -> int:
        block, self.blocks = self.blocks, self.blocks + 1
        self._signal(f"{self.pid}-{block}.begun")
        act()
        return int(self._signal(f"{self.pid}-{block}.calls").read_text())

    def calls_per_answer(self, name: str, plan: LoadSpec) -> float:
        """Calls for each answer of the load, beyond those of the gateway's own beats, which go on meanwhile."""
        idle = self.calls_during(lambda: time.sleep(plan.duration_s))
        reports = []
        busy = self.calls_during(lambda: reports.append(run_load(plan)))
        check_answers(name, reports[0])
        return (busy - idle) / reports[0].summary.count

    def _signal(self, answer: str) -> Path:
        os.kill(self.pid, signal.SIGUSR1)
        return _awaited(self.folder / answer)


def measure_gateway_calls(session: MeasuringSession) -> None:
    """Under a load, requests share calls of the store; a lone one has its own, which the detail tells."""
    plan = session.stack_plan("gateway_calls")
    folder = plan.folder / "profiled"
    profiled.install(folder)
    with whole_stack(plan, {"PYTHONPATH": str(folder)}):
        [pid] = [int(path.stem) for path in folder.glob("*.gateway")]
        gateway, found = ProfiledGateway(folder, pid), dict[str, float]()
        for name, connections in (("lone", 1), ("busy", _AT_ONCE)):
            load = post_plan(
                f"{plan.url}/predictions/noop", NOOP_BODY, connections=connections, duration_s=min(3.0, session.seconds)
            )
            run_load(load)
            found[name] = gateway.calls_per_answer(f"gateway_calls {name}", load)
    session.say(f"gateway_calls: {found['busy']:.0f} per request, {found['lone']:.0f} of a lone one")
    session.findings.figures["gateway_calls_per_request"] = found["busy"]
    session.findings.detail["gateway_calls"] = found


def _awaited(path: Path) -> Path:
    give_up_at = time.monotonic() + _MOST_S
    while not path.exists():
        if time.monotonic() > give_up_at:
            raise PenstockError(f"the gateway wrote no {path.name} within {_MOST_S:g} s of the signal")
        time.sleep(_POLL_S)
    return path
