from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.models.slots import SlotsState, VersionSlots, slots_of
from penstock.model_spec import ScalingInfo, SlotInfo, WorkerInfo


def worker(*states: str, wanted: int | None = 1, name: str = "w", **fields: Any) -> WorkerInfo:
    slots = tuple(SlotInfo("m", "1", state, error="no weights" if state == "failed" else "") for state in states)
    return WorkerInfo(name, "here", 1, 0.0, slots, wanted=None if wanted is None else {"m": {"1": wanted}}, **fields)


def state(*workers: WorkerInfo, scale: int | None = None, mark: str = "") -> SlotsState:
    return slots_of(workers, "m", "1", scale=scale, mark=mark).state


def test_a_version_is_as_wanted_once_exactly_its_slots_are_ready() -> None:
    assert state(worker("ready")) is SlotsState.REACHED
    assert state(worker("ready", "ready")) is SlotsState.PENDING, "one too many"
    assert state(worker("ready", wanted=2)) is SlotsState.PENDING, "one too few"
    assert state(worker("ready", "loading", wanted=2)) is SlotsState.PENDING


def test_the_slots_of_all_workers_count() -> None:
    assert state(worker("ready"), worker("ready", name="v")) is SlotsState.REACHED
    assert state(worker("ready"), worker("loading", name="v")) is SlotsState.PENDING


def test_a_version_scaled_to_none_is_as_wanted_once_its_last_slot_is_gone() -> None:
    assert state(worker("ready", wanted=0), scale=0) is SlotsState.PENDING
    assert state(worker(wanted=0), scale=0) is SlotsState.REACHED
    assert state(scale=0) is SlotsState.REACHED, "without workers too"


def test_nothing_is_settled_before_every_worker_has_taken_up_the_change() -> None:
    ahead, behind = worker("ready", followed={"m": "new"}), worker("ready", name="v", followed={"m": "old"})
    assert state(ahead, mark="new") is SlotsState.REACHED
    assert state(ahead, behind, mark="new") is SlotsState.PENDING
    assert state(ahead, mark="") is SlotsState.PENDING, "the rollout is gone, and this worker does not know yet"


def test_a_slot_that_cannot_run_is_a_failure_only_when_no_other_is_still_to_come() -> None:
    assert state(worker("failed", "loading", wanted=2)) is SlotsState.PENDING
    assert state(worker("failed", "ready", wanted=2)) is SlotsState.FAILED
    # A worker without the file wants no slot; the others serve.
    assert state(worker("ready"), worker("failed", wanted=0, name="v")) is SlotsState.REACHED


def test_a_version_that_no_worker_has_to_do_with_is_unserved() -> None:
    assert state() is SlotsState.UNSERVED
    assert state(WorkerInfo("w", "here", 1, 0.0, wanted={})) is SlotsState.UNSERVED


def test_a_worker_of_an_earlier_release_wants_what_it_has() -> None:
    old = worker("ready", "ready", wanted=None)
    assert slots_of([old], "m", "1", mark="new").wanted == 2
    assert state(old, mark="new") is SlotsState.REACHED


@pytest.mark.parametrize(
    ("slots", "why"),
    [
        (VersionSlots(), "no live worker serves it"),
        (VersionSlots(loading=1), "still loading"),
        (VersionSlots(loading=1, failed=("no weights",)), "could not be loaded: no weights"),
        (VersionSlots(scale=0, failed=("no weights",)), "scaled to no slots"),
    ],
)
def test_what_keeps_a_version_is_said_in_words(slots: VersionSlots, why: str) -> None:
    assert slots.why == why


def test_a_view_shows_each_reason_once_and_not_all_of_a_thousand() -> None:
    assert VersionSlots(failed=("a", "b", "a")).reasons == ["a", "b"]
    assert len(VersionSlots(failed=tuple(map(str, range(1_000)))).reasons) < 10


STATES = st.lists(st.sampled_from(["ready", "loading", "failed"]), max_size=4)


@given(st.lists(st.tuples(STATES, st.integers(0, 4)), max_size=4), st.sampled_from([None, 0, 1, 3]))
def test_what_is_reached_has_exactly_the_wanted_slots_and_none_that_loads(
    found: list[tuple[list[str], int]], scale: int | None
) -> None:
    slots = slots_of([worker(*states, wanted=wanted) for states, wanted in found], "m", "1", scale=scale)
    if slots.state is SlotsState.REACHED:
        assert (slots.ready, slots.loading) == (slots.wanted, 0)
    if slots.state is SlotsState.FAILED:
        assert slots.failed
        assert not slots.loading


def test_a_version_whose_next_job_starts_a_slot_is_unloaded_and_no_fault() -> None:
    info = ScalingInfo(0, 2, 2, 0, start_s=2.5)
    unloaded = slots_of([worker(wanted=0, scaling={"m": {"1": info}})], "m", "1")
    assert (unloaded.state, unloaded.why) == (SlotsState.UNLOADED, "unloaded; the next job has it loaded, in about 2.5 s")
    loading = slots_of([worker("loading", scaling={"m": {"1": info}})], "m", "1")
    assert (loading.state, loading.why) == (SlotsState.PENDING, "still loading")
    failed = slots_of([worker("failed", wanted=1, scaling={"m": {"1": info}})], "m", "1")
    assert failed.state is SlotsState.FAILED
