"""Which runs a runner leaves to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.job import BlobLocation
from penstock.run import Run, RunPart, RunSpec, RunState, part_id
from penstock.runs.execution import DriveResult, Execution, RunServices
from penstock.runs.lease import OwnedRun
from penstock.runs.runner import Runner


class GivenBack:
    """A drive that ends with this code."""

    def __init__(self, code: str) -> None:
        self.code = code

    def execute(self) -> DriveResult:
        return DriveResult(RunState.RUNNING, error_code=self.code)


def part_of(run_id: str) -> OwnedRun:
    spec, part = RunSpec(model="m", input="i", output="o", parts=2), RunPart(number=0, first=0, stop=1)
    run = Run(id=part_id(run_id, 0), spec=spec, state=RunState.RUNNING, created_at=0.0, part=part, part_of=run_id)
    return OwnedRun(run, "d", 0.0)


def test_a_run_that_this_host_cannot_read_is_passed_over_for_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("penstock.runs.runner.time.monotonic", lambda: now[0])
    services = RunServices("redis://nowhere", cast("BlobLocation", None), tmp_path)
    runner = Runner(services, stopped=lambda _: True)
    for run_id, code in (("read", ""), ("held", "part_held"), ("unread", "given_back")):
        execution: Any = GivenBack(code)
        runner._execute(cast("Execution", execution), part_of(run_id))
    assert runner._unreadable() == ["unread"]
    now[0] += 59.0
    assert runner._unreadable() == ["unread"]
    now[0] += 2.0
    assert runner._unreadable() == []
