"""How the end of a run is reported: by an exit code, to people and to programs."""

from __future__ import annotations

import pytest

from penstock.cli.exits import FAILED, INTERRUPTED, OK
from penstock.cli.runs.session import exit_code_of
from penstock.run import RunCounts, RunState
from penstock.runs.execution import DriveResult


@pytest.mark.parametrize(
    ("state", "done", "failed", "code"),
    [
        (RunState.COMPLETED, 10, 0, OK),
        (RunState.COMPLETED, 9, 1, OK),
        (RunState.COMPLETED, 0, 10, FAILED),
        (RunState.COMPLETED, 0, 0, OK),
        (RunState.FAILED, 9, 1, FAILED),
        (RunState.CANCELLED, 9, 0, FAILED),
        (RunState.EXPIRED, 9, 0, FAILED),
        (RunState.RUNNING, 9, 0, INTERRUPTED),
    ],
)
def test_the_exit_code_tells_a_script_whether_there_is_an_output_to_go_on_with(
    state: RunState, done: int, failed: int, code: int
) -> None:
    assert exit_code_of(DriveResult(state, RunCounts(done=done, failed=failed))) == code


def test_a_completed_run_without_a_drive_of_its_own_is_a_success() -> None:
    assert exit_code_of(DriveResult(RunState.COMPLETED)) == OK
