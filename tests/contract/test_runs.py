"""A run has one driver at a time, a final state that stays, and a place in a list that pages."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from penstock.broker.contract import CancelStatus, DropStatus, ReopenStatus, TakeStatus, UpdateStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.runs import AsyncRunStore, RunStore
from penstock.broker.store.sync import RedisStore
from penstock.run import BY_COMMAND, Run, RunCounts, RunSpec, RunState
from tests.eventually import eventually

SPEC = RunSpec(model="square", input="in.jsonl", output="out.jsonl", columns={"x": "number"}, carry=("id",), max_failed=3)
DONE = RunChange(state=RunState.COMPLETED)


@pytest.fixture
def runs(fresh_redis: str) -> Iterator[RunStore]:
    with closing(RedisStore(fresh_redis)) as store:
        yield RunStore(store)


def create(runs: RunStore, *, owner: str = "") -> str:
    return runs.create(uuid.uuid4().hex, SPEC, owner=owner).run.id


def taken(runs: RunStore, driver: str = "d1", *, lease_s: float = 60.0) -> str:
    run = create(runs)
    assert runs.take(run, driver, lease_s=lease_s).status is TakeStatus.TAKEN
    return run


def ended(runs: RunStore, state: RunState = RunState.COMPLETED) -> str:
    run = taken(runs)
    assert runs.update(run, "d1", RunChange(state=state), lease_s=0) is UpdateStatus.OK
    return run


def read(runs: RunStore, run: str) -> Run:
    found = runs.read(run)
    assert found is not None
    return found


def test_a_new_run_is_queued_and_keeps_what_was_asked(runs: RunStore) -> None:
    made = runs.create("r1", SPEC, owner="ann")
    assert made.new
    assert (made.run.spec, made.run.owner, made.run.state, made.run.counts) == (SPEC, "ann", RunState.QUEUED, RunCounts())
    assert runs.read("r1") == made.run
    assert runs.read("r2") is None


def test_the_same_id_again_is_the_first_run(runs: RunStore) -> None:
    first = runs.create("r1", SPEC, owner="ann")
    again = runs.create("r1", RunSpec(model="other", input="a", output="b"), owner="bob")
    assert (again.new, again.run) == (False, first.run)


def test_a_driver_holds_its_run_while_its_lease_lasts(runs: RunStore) -> None:
    run = taken(runs, "d1")
    refused = runs.take(run, "d2", lease_s=60)
    assert refused.status is TakeStatus.HELD
    assert refused.run is not None
    assert (refused.run.driver, refused.run.driver_until > refused.run.created_at) == ("d1", True)
    assert runs.take(run, "d1", lease_s=60).status is TakeStatus.TAKEN


def test_a_run_whose_drivers_lease_passed_is_anybodys(runs: RunStore) -> None:
    run = taken(runs, "d1", lease_s=0)
    assert runs.take(run, "d2", lease_s=60).status is TakeStatus.TAKEN
    assert runs.update(run, "d1", RunChange(counts=RunCounts(done=7)), lease_s=60) is UpdateStatus.LOST
    assert read(runs, run).counts == RunCounts()


def test_an_ended_or_unknown_run_cannot_be_taken(runs: RunStore) -> None:
    assert runs.take(ended(runs), "d2", lease_s=60).status is TakeStatus.FINAL
    nothing = runs.take("nowhere", "d1", lease_s=60)
    assert (nothing.status, nothing.run) == (TakeStatus.MISSING, None)


def test_an_update_writes_what_it_names_and_nothing_else(runs: RunStore) -> None:
    run = taken(runs)
    first = RunChange(RunState.RUNNING, RunCounts(total=10, done=2, failed=1), "3", 12.5, 0.75, details={"parts": [1, 2]})
    assert runs.update(run, "d1", first, lease_s=60) is UpdateStatus.OK
    assert runs.update(run, "d1", RunChange(error_code="x", error_message="y"), lease_s=60) is UpdateStatus.OK
    found = read(runs, run)
    assert (found.state, found.counts, found.version) == (RunState.RUNNING, RunCounts(total=10, done=2, failed=1), "3")
    assert (found.rows_per_s, found.busy, found.details) == (12.5, 0.75, {"parts": [1, 2]})
    assert (found.error_code, found.error_message, found.finished_at) == ("x", "y", None)
    assert found.started_at is not None


def test_a_run_starts_when_it_leaves_the_queue(runs: RunStore) -> None:
    run = taken(runs)
    runs.update(run, "d1", RunChange(), lease_s=60)
    assert read(runs, run).started_at is None
    runs.update(run, "d1", RunChange(state=RunState.VALIDATING), lease_s=60)
    started = read(runs, run).started_at
    runs.update(run, "d1", RunChange(state=RunState.RUNNING), lease_s=60)
    assert started == read(runs, run).started_at


@pytest.mark.parametrize("state", [state for state in RunState if state.final])
def test_the_first_final_state_stands(runs: RunStore, state: RunState) -> None:
    run = ended(runs, state)
    was = read(runs, run)
    assert (was.state, was.finished_at is not None) == (state, True)
    for change in (RunChange(state=RunState.RUNNING), RunChange(state=RunState.FAILED), RunChange(counts=RunCounts(done=1))):
        assert runs.update(run, "d1", change, lease_s=60) is UpdateStatus.FINAL
    assert read(runs, run) == was


def test_a_driver_that_ended_its_run_says_no_more(runs: RunStore) -> None:
    assert runs.update(ended(runs), "d1", RunChange(state=RunState.FAILED), lease_s=0) is UpdateStatus.FINAL


def test_an_update_of_an_unknown_run_is_answered_missing(runs: RunStore) -> None:
    assert runs.update("nowhere", "d1", DONE, lease_s=60) is UpdateStatus.MISSING


def test_a_driver_that_lets_go_leaves_the_run_to_others_at_once(runs: RunStore) -> None:
    run = taken(runs)
    runs.update(run, "d1", RunChange(state=RunState.RUNNING), lease_s=0)
    assert runs.take(run, "d2", lease_s=60).status is TakeStatus.TAKEN


def test_a_queued_run_without_a_driver_is_cancelled_at_once(runs: RunStore) -> None:
    run = create(runs)
    assert runs.ask_cancel(run) is CancelStatus.CANCELLED
    assert (read(runs, run).state, read(runs, run).finished_at is not None) == (RunState.CANCELLED, True)
    assert runs.ask_cancel(run) is CancelStatus.FINAL


def test_the_driver_is_told_that_somebody_asks_for_the_end(runs: RunStore) -> None:
    run = taken(runs)
    assert runs.ask_cancel(run) is CancelStatus.REQUESTED
    assert read(runs, run).request == "cancel"
    assert runs.update(run, "d1", RunChange(state=RunState.RUNNING), lease_s=60) is UpdateStatus.CANCEL
    assert runs.update(run, "d1", RunChange(state=RunState.CANCELLED), lease_s=0) is UpdateStatus.CANCEL
    assert read(runs, run).state is RunState.CANCELLED


def test_a_run_that_was_interrupted_is_only_asked_to_end(runs: RunStore) -> None:
    run = taken(runs)
    runs.update(run, "d1", RunChange(state=RunState.RUNNING), lease_s=0)
    assert runs.ask_cancel(run) is CancelStatus.REQUESTED
    again = runs.take(run, "d2", lease_s=60)
    assert again.run is not None
    assert again.run.request == "cancel"


def test_the_run_of_another_owner_does_not_exist(runs: RunStore) -> None:
    run = create(runs, owner="ann")
    assert runs.ask_cancel(run, owner="bob") is CancelStatus.MISSING
    assert runs.ask_cancel(run, owner="") is CancelStatus.MISSING
    assert runs.ask_cancel(run, owner="ann") is CancelStatus.CANCELLED
    assert runs.drop(run, owner="bob") is DropStatus.MISSING
    assert runs.drop(run, owner="ann") is DropStatus.DROPPED


def test_only_an_ended_run_is_dropped(runs: RunStore) -> None:
    run = create(runs)
    assert runs.drop(run) is DropStatus.LIVE
    runs.ask_cancel(run)
    assert runs.drop(run) is DropStatus.DROPPED
    assert runs.drop(run) is DropStatus.MISSING
    assert (runs.read(run), runs.page().runs) == (None, [])


def test_a_run_that_was_not_completed_can_be_opened_again_and_ends_again(runs: RunStore) -> None:
    run = create(runs)
    assert runs.reopen(run) is ReopenStatus.LIVE
    runs.take(run, "d1", lease_s=60.0)
    runs.update(run, "d1", RunChange(state=RunState.FAILED, error_code="x", error_message="y"), lease_s=0)
    assert runs.reopen(run) is ReopenStatus.REOPENED
    found = runs.read(run)
    assert found is not None
    assert (found.state, found.error_code, found.finished_at, found.driver) == (RunState.QUEUED, "", None, "")
    assert [each.id for each in runs.page(states=[RunState.QUEUED]).runs] == [run]
    assert runs.update(run, "d1", RunChange(), lease_s=60.0) is UpdateStatus.LOST
    assert runs.take(run, "d2", lease_s=60.0).status is TakeStatus.TAKEN
    runs.update(run, "d2", RunChange(state=RunState.COMPLETED), lease_s=0)
    assert runs.reopen(run) is ReopenStatus.COMPLETED
    assert runs.reopen("nothing") is ReopenStatus.MISSING


def test_a_gateway_sees_the_same_runs(fresh_redis: str) -> None:
    async def ask() -> None:
        store = AsyncStore(fresh_redis)
        runs = AsyncRunStore(store)
        made = await runs.create("r1", SPEC, owner="ann")
        assert made.new
        assert await runs.read("r1") == made.run
        assert (await runs.page(owner="ann", states=[RunState.QUEUED])).runs == [made.run]
        assert await runs.ask_cancel("r1", owner="ann") is CancelStatus.CANCELLED
        assert await runs.drop("r1") is DropStatus.DROPPED
        await store.close()

    asyncio.run(ask())


def begun(runs: RunStore, run: str, *drivers: str) -> None:
    """Have the drivers take the run one after the other; each dies at once."""
    for driver in drivers:
        assert runs.take(run, driver, lease_s=0).status is TakeStatus.TAKEN


def test_a_run_whose_drivers_die_one_after_the_other_fails_and_says_why(runs: RunStore) -> None:
    """A small file that took its runner along was taken up again for ever, and took the next one along."""
    run = create(runs)
    begun(runs, run, "d1", "d2", "d3")
    assert runs.take(run, "d3", lease_s=0).status is TakeStatus.TAKEN, "a take whose answer was lost counts once"
    assert runs.take(run, "d4", lease_s=60).status is TakeStatus.FINAL
    found = read(runs, run)
    assert (found.state, found.error_code, found.finished_at is not None) == (RunState.FAILED, "driver_lost", True)
    assert "three times" in found.error_message
    assert runs.look(5) == []
    assert runs.reopen(run) is ReopenStatus.REOPENED
    begun(runs, run, "d5", "d6", "d7")


def test_a_run_that_gets_further_or_is_left_in_order_may_lose_drivers_again(runs: RunStore) -> None:
    run = create(runs)
    begun(runs, run, "d1", "d2", "d3")
    runs.update(run, "d3", RunChange(counts=RunCounts(done=4, failed=1)), lease_s=60)
    assert read(runs, run).drives == 0
    runs.update(run, "d3", RunChange(), lease_s=0)
    begun(runs, run, "d4", "d5", "d6")
    runs.update(run, "d6", RunChange(counts=RunCounts(done=5)), lease_s=60)
    assert read(runs, run).drives == 3, "it only came as far as before"
    runs.update(run, "d6", RunChange(), lease_s=0)
    assert read(runs, run).drives == 0
    begun(runs, run, "d7", "d8", "d9")
    assert runs.take(run, "d10", lease_s=60).status is TakeStatus.FINAL


def test_a_spent_run_that_was_asked_to_end_is_cancelled(runs: RunStore) -> None:
    run = taken(runs, "d1", lease_s=60)
    runs.update(run, "d1", RunChange(state=RunState.RUNNING), lease_s=60)
    assert runs.ask_cancel(run) is CancelStatus.REQUESTED
    for dead, driver in (("d1", "d2"), ("d2", "d3")):
        assert runs.take(run, driver, lease_s=60, dead=dead).status is TakeStatus.TAKEN
    assert runs.take(run, "d4", lease_s=60).status is TakeStatus.HELD
    assert runs.take(run, "d4", lease_s=60, dead="d3").status is TakeStatus.FINAL
    assert read(runs, run).state is RunState.CANCELLED


def test_a_runner_sees_the_oldest_run_of_each_owner_and_owners_take_turns(runs: RunStore) -> None:
    # In one millisecond the id decides.
    first, second, third = (runs.create(f"r{at}", SPEC, owner=owner).run.id for at, owner in enumerate(["ann", "ann", "bob"]))
    assert [run.id for run in runs.look(1)] == [first]
    assert [run.id for run in runs.look(5)] == [first, third]
    runs.take(first, "d1", lease_s=60)
    assert [run.id for run in runs.look(5)] == [third, second]
    runs.take(third, "d2", lease_s=60)
    assert [run.id for run in runs.look(5)] == [second]
    runs.update(third, "d2", RunChange(state=RunState.RUNNING), lease_s=0)
    assert {run.id for run in runs.look(5)} == {second, third}, "a run that was left waits again"
    assert runs.look(0) == []


def test_a_runner_sees_no_run_of_a_command_none_that_is_driven_and_none_that_ended(runs: RunStore) -> None:
    runs.create("command", msgspec.structs.replace(SPEC, metadata={BY_COMMAND: "1"}), owner="cat")
    runs.take("command", "d", lease_s=0)
    taken(runs, "d1")
    ended(runs)
    runs.ask_cancel(create(runs))
    assert runs.look(5) == []


def test_more_live_runs_than_one_page_are_all_reached_oldest_first(runs: RunStore) -> None:
    """A runner once looked at the 100 newest live runs; older ones never began."""
    made = [create(runs) for _ in range(130)]
    seen = []
    while found := runs.look(2):
        seen += [run.id for run in found]
        runs.take(found[0].id, f"d{len(seen)}", lease_s=60)
    assert sorted(seen) == sorted(made)
    moments = [read(runs, run).created_at for run in seen]
    assert moments == sorted(moments)


def test_a_queued_run_past_its_deadline_expires_in_the_look_and_one_that_has_begun_is_left_to_a_driver(runs: RunStore) -> None:
    brief = msgspec.structs.replace(SPEC, deadline_s=0.001)
    runs.create("queued", brief)
    runs.create("begun", brief)
    runs.take("begun", "d1", lease_s=0)
    runs.update("begun", "d1", RunChange(state=RunState.RUNNING), lease_s=0)
    eventually(lambda: bool(runs.look(0)) or read(runs, "queued").state is RunState.EXPIRED)
    assert read(runs, "begun").state is RunState.RUNNING
    assert [run.id for run in runs.look(5)] == ["begun"]


def test_a_run_whose_driver_was_late_with_a_beat_does_not_stand_in_the_way_of_its_owner(runs: RunStore) -> None:
    late, other = runs.create("r1", SPEC).run.id, runs.create("r2", SPEC).run.id
    runs.take(late, "d1", lease_s=0)
    assert [run.id for run in runs.look(1)] == [late]
    assert runs.update(late, "d1", RunChange(), lease_s=60) is UpdateStatus.OK
    assert [run.id for run in runs.look(1)] == [other]
