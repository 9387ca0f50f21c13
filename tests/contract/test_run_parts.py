"""Each part of a run has one driver, together they are its progress, and the run ends once."""

from __future__ import annotations

import pytest

from penstock.broker.contract import CancelStatus, ReopenStatus, TakeStatus, UpdateStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.run import BY_COMMAND, RunCounts, RunPart, RunSpec, RunState, part_id
from tests.contract.test_runs import DONE, SPEC, create, read, runs

__all__ = ["runs"]

PARTS = [RunPart(number=number, first=number, stop=number + 1, rows=10, host="h") for number in range(3)]
RUNNING = RunChange(state=RunState.RUNNING)


def split(runs: RunStore, *, owner: str = "", spec: RunSpec = SPEC) -> str:
    run = runs.create(f"run{len(runs.page(limit=100).runs)}", spec, owner=owner).run.id
    runs.take(run, "planner", lease_s=60)
    runs.update(run, "planner", RunChange(state=RunState.VALIDATING, version="7"), lease_s=60)
    assert runs.split(run, "planner", PARTS, RunCounts(total=30)) is UpdateStatus.OK
    runs.update(run, "planner", RUNNING, lease_s=0)
    return run


def drive(runs: RunStore, run: str, number: int, change: RunChange = RUNNING, *, lease_s: float = 60) -> UpdateStatus:
    part, driver = part_id(run, number), f"d{number}"
    assert runs.take(part, driver, lease_s=60).status is TakeStatus.TAKEN
    return runs.update(part, driver, change, lease_s=lease_s)


def complete(runs: RunStore, run: str, *numbers: int) -> None:
    for number in numbers:
        change = RunChange(state=RunState.COMPLETED, counts=RunCounts(done=9, failed=1))
        assert drive(runs, run, number, change, lease_s=0) is UpdateStatus.OK


def test_a_part_is_a_run_with_the_settings_of_the_whole(runs: RunStore) -> None:
    run = split(runs, owner="ann")
    whole, parts = read(runs, run), runs.parts(run)
    assert (whole.parts, whole.counts, whole.part, runs.parts("nowhere")) == (3, RunCounts(total=30), None, [])
    assert [part.part for part in parts] == PARTS
    for part in parts:
        kept = (part.spec, part.owner, part.part_of, part.version, part.state)
        assert kept == (SPEC, "ann", run, "7", RunState.QUEUED)
    assert [found.id for found in runs.page().runs] == [run], "parts are not listed"


def test_a_run_is_split_once_and_only_by_its_driver(runs: RunStore) -> None:
    run = split(runs)
    assert runs.split(run, "other", PARTS, RunCounts()) is UpdateStatus.LOST
    runs.take(run, "late", lease_s=60)
    assert runs.split(run, "late", PARTS[:1], RunCounts()) is UpdateStatus.OK
    assert (len(runs.parts(run)), read(runs, run).parts) == (3, 3)
    assert runs.split("nowhere", "d", PARTS, RunCounts()) is UpdateStatus.MISSING


def test_drivers_take_parts_until_all_are_driven_and_the_run_itself_once_all_have_ended(runs: RunStore) -> None:
    run = split(runs)
    seen: list[str] = []
    for _ in PARTS:
        [found] = runs.look(5)
        assert found == runs.next_of(run)
        assert runs.take(found.id, f"d{len(seen)}", lease_s=60).status is TakeStatus.TAKEN
        seen.append(found.id)
    assert seen == [part_id(run, number) for number in range(3)]
    assert (runs.look(5), runs.next_of(run)) == ([], None)
    assert runs.take(seen[0], "other", lease_s=60).status is TakeStatus.HELD
    for number in range(3):
        runs.update(seen[number], f"d{number}", DONE, lease_s=0)
    [whole] = runs.look(5)
    assert (whole.id, whole.state) == (run, RunState.RUNNING)
    assert runs.next_of(run) == whole


def test_a_part_whose_driver_is_gone_is_anybodys_and_its_old_driver_writes_nothing(runs: RunStore) -> None:
    run = split(runs)
    drive(runs, run, 0, lease_s=0)
    drive(runs, run, 1)
    drive(runs, run, 2)
    [found] = runs.look(5)
    assert found.id == part_id(run, 0)
    runs.take(found.id, "heir", lease_s=60)
    late = RunChange(state=RunState.FAILED, counts=RunCounts(done=5))
    assert runs.update(found.id, "d0", late, lease_s=60) is UpdateStatus.LOST
    assert (read(runs, run).state, read(runs, run).counts) == (RunState.RUNNING, RunCounts(total=30))


def test_a_run_shows_what_its_parts_have_done_together(runs: RunStore) -> None:
    run = split(runs)
    drive(runs, run, 0, RunChange(counts=RunCounts(total=10, done=4, failed=1), rows_per_s=2.0, busy=0.25))
    drive(runs, run, 1, RunChange(counts=RunCounts(total=10, done=3), rows_per_s=1.5, busy=0.5))
    found = read(runs, run)
    assert (found.counts, found.rows_per_s, found.busy) == (RunCounts(total=30, done=7, failed=1), 3.5, 0.75)
    assert found.driver in {"d0", "d1"}
    # One began again behind an older checkpoint; the other was left.
    drive(runs, run, 0, RunChange(counts=RunCounts(done=2)))
    drive(runs, run, 1, RunChange(), lease_s=0)
    found = read(runs, run)
    assert (found.counts, found.rows_per_s, found.driver) == (RunCounts(total=30, done=5), 2.0, "d0")


def test_a_part_that_fails_ends_its_run_and_the_other_parts_are_left(runs: RunStore) -> None:
    run = split(runs)
    drive(runs, run, 0)
    failed = RunChange(state=RunState.FAILED, error_code="too_many_failed", error_message="9 rows", details={"a": 1})
    assert drive(runs, run, 1, failed, lease_s=0) is UpdateStatus.LEAVE
    found = read(runs, run)
    assert (found.state, found.error_code, found.error_message) == (RunState.FAILED, "too_many_failed", "9 rows")
    assert found.details == {"a": 1}
    assert runs.update(part_id(run, 0), "d0", RunChange(counts=RunCounts(done=3)), lease_s=0) is UpdateStatus.LEAVE
    assert runs.take(part_id(run, 2), "d2", lease_s=60).status is TakeStatus.FINAL
    assert (runs.next_of(run), read(runs, run).counts.done) == (None, 3)


def test_a_reopened_run_does_only_what_is_left(runs: RunStore) -> None:
    run = split(runs)
    complete(runs, run, 0)
    drive(runs, run, 1, RunChange(state=RunState.FAILED, error_code="x"), lease_s=0)
    again = RunSpec(**{name: getattr(SPEC, name) for name in SPEC.__struct_fields__} | {"max_failed": "100%"})
    assert runs.reopen(run, again) is ReopenStatus.REOPENED
    assert [part.state for part in runs.parts(run)] == [RunState.COMPLETED, RunState.QUEUED, RunState.QUEUED]
    assert {part.spec.max_failed for part in runs.parts(run)} == {"100%"}
    complete(runs, run, 1, 2)
    assert runs.reopen(run, SPEC) is ReopenStatus.LIVE
    found = runs.next_of(run)
    assert found is not None
    assert (found.id, found.counts, found.spec, found.error_code) == (run, RunCounts(total=30, done=27, failed=3), SPEC, "")


def test_a_cancelled_run_ends_at_once_and_its_drivers_leave_their_parts(runs: RunStore) -> None:
    run = split(runs)
    drive(runs, run, 0)
    assert runs.ask_cancel(run) is CancelStatus.CANCELLED
    assert runs.update(part_id(run, 0), "d0", RunChange(), lease_s=60) is UpdateStatus.LEAVE
    assert read(runs, run).state is RunState.CANCELLED


def test_a_run_whose_parts_are_put_together_is_asked_to_end(runs: RunStore) -> None:
    run = split(runs)
    complete(runs, run, 0, 1, 2)
    runs.take(run, "joiner", lease_s=60)
    assert (runs.next_of(run), runs.ask_cancel(run)) == (None, CancelStatus.REQUESTED)
    assert runs.update(run, "joiner", DONE, lease_s=0) is UpdateStatus.CANCEL
    assert read(runs, run).state is RunState.COMPLETED


def test_a_run_that_is_to_be_cancelled_while_it_is_split_ends_when_its_driver_leaves_it(runs: RunStore) -> None:
    run = create(runs)
    runs.take(run, "planner", lease_s=60)
    runs.split(run, "planner", PARTS, RunCounts())
    assert runs.ask_cancel(run) is CancelStatus.REQUESTED
    assert runs.update(run, "planner", RUNNING, lease_s=60) is UpdateStatus.CANCEL
    assert read(runs, run).state is RunState.RUNNING
    runs.update(run, "planner", RunChange(), lease_s=0)
    assert (read(runs, run).state, runs.next_of(run)) == (RunState.CANCELLED, None)


def test_a_part_that_kills_its_drivers_fails_the_run(runs: RunStore) -> None:
    run = split(runs)
    for driver in ("d1", "d2", "d3"):
        assert runs.take(part_id(run, 0), driver, lease_s=0).status is TakeStatus.TAKEN
    assert runs.take(part_id(run, 0), "d4", lease_s=60).status is TakeStatus.FINAL
    assert (read(runs, run).state, read(runs, run).error_code) == (RunState.FAILED, "driver_lost")


def test_a_runner_passes_over_the_runs_that_it_cannot_read(runs: RunStore) -> None:
    mine, other = split(runs, owner="ann"), create(runs, owner="bob")
    assert {run.id for run in runs.look(5)} == {part_id(mine, 0), other}
    assert [run.id for run in runs.look(5, without=[mine])] == [other]
    assert runs.look(5, without=[mine, other]) == []


def test_an_owner_whose_parts_are_all_driven_holds_up_nobody(runs: RunStore) -> None:
    run = split(runs, owner="ann")
    for number in range(3):
        drive(runs, run, number)
    other = create(runs, owner="bob")
    assert [found.id for found in runs.look(1)] == [other]


def test_parts_of_a_commands_run_are_for_those_who_name_it(runs: RunStore) -> None:
    run = split(runs, spec=RunSpec(model="m", input="i", output="o", metadata={BY_COMMAND: "1"}))
    assert runs.look(5) == []
    found = runs.next_of(run)
    assert found is not None
    assert found.id == part_id(run, 0)


@pytest.mark.parametrize("when", ["split", "ended"])
def test_a_forgotten_run_takes_its_parts_along(runs: RunStore, when: str) -> None:
    run = split(runs)
    if when == "ended":
        complete(runs, run, 0, 1, 2)
    runs.ask_cancel(run)
    runs.drop(run)
    assert (runs.read(run), runs.parts(run), runs.read(part_id(run, 1))) == (None, [], None)
