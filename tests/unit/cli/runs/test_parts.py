"""How many parts a command asks for, and how it shows them."""

from __future__ import annotations

import pytest

from penstock.cli.runs.display import part_row
from penstock.cli.runs.drive import progress_of
from penstock.cli.runs.existing import resumed_spec
from penstock.cli.runs.run import parts_for
from penstock.errors import BadRequest
from penstock.run import ACCEPT_CHANGES, Run, RunCounts, RunPart, RunSpec, RunState
from penstock.runs.execution import ResumeOptions

SPEC = RunSpec(model="m", input="i", output="o", parts=2, max_failed="5%", metadata={"k": "v"})


@pytest.mark.parametrize(("asked", "drivers", "parts"), [(0, 1, 1), (0, 2, 8), (1, 1, 1), (5, 1, 5), (3, 2, 3)])
def test_drivers_have_four_parts_each_unless_the_number_is_given(asked: int, drivers: int, parts: int) -> None:
    assert parts_for(asked, drivers) == parts


def test_several_drivers_need_several_parts() -> None:
    with pytest.raises(BadRequest, match="one part has one driver"):
        parts_for(1, 2)


def part(number: int, state: RunState, **more: object) -> Run:
    stretch = RunPart(number=number, first=0, stop=1, begin={"offset": 1000, "line": 7} if number else None)
    run = Run(id=f"r.{number}", spec=SPEC, state=state, created_at=0.0, part=stretch, part_of="r", driver_until=50.0)
    return Run(**{**{name: getattr(run, name) for name in run.__struct_fields__}, **more})


def test_the_progress_of_a_run_is_that_of_its_parts() -> None:
    run = Run(id="r", spec=SPEC, state=RunState.RUNNING, created_at=0.0, counts=RunCounts(done=4, failed=1), rows_per_s=2.0)
    parts = [part(0, RunState.COMPLETED), part(1, RunState.RUNNING, error_message="b cannot read the input")]
    found = progress_of(run, parts, elapsed_s=3.0)
    assert (found.share, found.rows_per_s, found.note) == (0.5, 2.0, "1 of 2 parts done; part 1: b cannot read the input")
    assert progress_of(run, [], elapsed_s=3.0).share is None


def test_a_part_is_shown_with_its_stretch_and_its_driver() -> None:
    shown = part_row(part(1, RunState.RUNNING, driver="host:1:2:place:serial", counts=RunCounts(done=3, failed=1)), 10.0)
    assert shown == ("1", "running", "4", "1", "host:1", "files 0 to 0, 1,000 to the end", "")
    assert part_row(part(0, RunState.COMPLETED, driver="host:1:2:place:serial"), 10.0)[4:6] == ("", "files 0 to 0")


def test_all_drivers_go_on_with_the_options_of_a_resume() -> None:
    assert resumed_spec(SPEC, ResumeOptions()) == SPEC
    accepted = resumed_spec(SPEC, ResumeOptions(accept_changes=True, max_failed="100%"))
    assert (accepted.max_failed, accepted.metadata) == ("100%", {"k": "v", ACCEPT_CHANGES: "1"})
