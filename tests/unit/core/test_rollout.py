from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.model_spec import ModelInfo, VersionInfo
from penstock.rollout import (
    FORGOTTEN_AFTER_S,
    MOST_ADDED,
    MOST_SLOTS,
    SETTLED_AFTER_S,
    Rollout,
    check_load,
    check_scale,
    check_switch,
    check_unload,
    followed,
    over,
)

ONE = ModelInfo("m", "1", versions={"1": VersionInfo()})
TWO = ModelInfo("m", "1", versions={"1": VersionInfo(), "2": None})


def test_a_model_without_changes_is_served_as_declared() -> None:
    assert followed(ONE, None) is ONE


def test_an_added_version_stands_beside_the_others_and_is_not_the_default() -> None:
    served = followed(ONE, Rollout().load("2", {"source": "two.py"}))
    assert served is not None
    assert (set(served.versions), served.default_version) == ({"1", "2"}, "1")


def test_what_workers_said_of_an_added_version_is_kept() -> None:
    known = ModelInfo("m", "1", versions={"1": VersionInfo(), "2": VersionInfo(description="new")})
    served = followed(known, Rollout().load("2", {"source": "two.py"}))
    assert served is not None
    assert served.versions["2"] == VersionInfo(description="new")


def test_after_the_switch_and_the_unload_only_the_new_version_is_left() -> None:
    rollout = Rollout().load("2", {"source": "two.py"}).switch("2").unload("1", 10.0)
    served = followed(ONE, rollout)
    assert served is not None
    assert (list(served.versions), served.default_version) == (["2"], "2")
    assert rollout.added == {"2": {"source": "two.py"}}


def test_a_model_whose_last_version_was_unloaded_is_served_no_more() -> None:
    assert followed(ONE, Rollout().unload("1", 10.0)) is None


def test_a_default_that_was_unloaded_elsewhere_falls_to_a_version_that_is_there() -> None:
    served = followed(TWO, Rollout(removed={"1": 10.0}))
    assert served is not None
    assert served.default_version == "2"


def test_a_version_name_is_never_given_to_other_code() -> None:
    with pytest.raises(Conflict, match="already"):
        check_load(ONE, Rollout(), "1")
    with pytest.raises(Conflict, match="removed"):
        check_load(ONE, Rollout().unload("1", 1.0), "1")
    check_load(ONE, Rollout(), "2")
    check_load(None, Rollout(), "1")


def test_no_more_versions_are_loaded_than_gateways_and_workers_can_look_at() -> None:
    full = Rollout(added={str(number): {} for number in range(100, 100 + MOST_ADDED)})
    with pytest.raises(Conflict, match="100 versions of this model"):
        check_load(ONE, full, "2")
    check_load(ONE, full.without({"100"}), "2")


def test_only_a_version_that_is_ready_becomes_the_default() -> None:
    with pytest.raises(NotFound):
        check_switch(TWO, "3", ready_slots=1)
    with pytest.raises(Conflict, match="not ready"):
        check_switch(TWO, "2", ready_slots=0)
    check_switch(TWO, "2", ready_slots=1)


def test_the_default_is_not_unloaded_while_others_could_take_its_place() -> None:
    with pytest.raises(Conflict, match="default"):
        check_unload(TWO, "1")
    with pytest.raises(NotFound):
        check_unload(TWO, "3")
    check_unload(TWO, "2")
    check_unload(ONE, "1")


LOADED = Rollout().load("20", {"source": "slow.py"}).switch("20")


def test_a_reset_lets_the_settings_versions_stand_and_takes_new_jobs_for_no_other() -> None:
    known = ModelInfo("m", "1", versions={"1": VersionInfo(), "20": VersionInfo()})
    rollout = LOADED.unload("1", 5.0).reset(known.versions, {"1"}, 10.0)
    served = followed(known, rollout)
    assert served is not None
    assert (list(served.versions), served.default_version) == (["1"], "1")
    assert rollout.added == {"20": {"source": "slow.py"}}, "what waits for it is still run"
    assert not rollout.changes


def test_a_version_unloaded_before_does_not_return_with_a_reset() -> None:
    rollout = LOADED.switch("1").unload("20", 5.0).reset(["1", "20"], {"1"}, 10.0)
    served = followed(ModelInfo("m", "1", versions={"1": None, "20": VersionInfo()}), rollout)
    assert served is not None
    assert list(served.versions) == ["1"]
    assert rollout.removed == {"20": 5.0}


def test_a_version_that_nobody_loaded_and_no_settings_name_goes_with_a_reset() -> None:
    # Regression: a version that an earlier reset left in the registry was listed for ever, and its jobs were accepted with 202.
    rollout = Rollout().reset(["1", "8"], {"1"}, 10.0)
    assert (rollout.removed, rollout.undone) == ({"8": 10.0}, ("8",))


def test_two_resets_are_as_one() -> None:
    once = LOADED.reset(["1", "20"], {"1"}, 10.0)
    assert once.reset(["1", "20"], {"1"}, 30.0) == once


def test_a_reset_of_a_model_that_nobody_changed_leaves_no_rollout() -> None:
    assert Rollout().reset(["1"], {"1"}, 10.0) == Rollout()


def test_what_a_reset_took_back_is_forgotten_when_nothing_needs_it_and_no_gateway_can_ask_for_it() -> None:
    rollout = LOADED.reset(["1", "20"], {"1"}, 10.0)
    late = 10.0 + SETTLED_AFTER_S
    assert over(rollout, {"1"}, lambda _: False, now=late - 0.1) == set()
    assert over(rollout, {"1"}, lambda _: True, now=late) == set()
    assert over(rollout, {"1"}, lambda _: False, now=late) == {"20"}
    assert rollout.without({"20"}) == Rollout()


def test_a_version_that_settings_name_needs_no_record_of_its_reset() -> None:
    rollout = LOADED.reset(["1", "20"], {"1", "20"}, 10.0)
    assert rollout.removed == {}
    assert over(rollout, {"1"}, lambda _: False, now=1_000.0) == set(), (
        "a gateway's settings name it; no worker's do, so this keeps it"
    )
    assert over(rollout, {"1", "20"}, lambda _: True, now=11.0) == {"20"}


def test_a_version_of_the_settings_that_is_unloaded_without_a_reset_is_never_forgotten() -> None:
    assert over(LOADED.unload("1", 10.0), set(), lambda _: False, now=1e6) == set()
    added_first = LOADED.switch("1").unload("20", 10.0)
    assert over(added_first, {"1", "20"}, lambda _: False, now=1e6) == set(), "settings have it by now"
    undone_first = LOADED.reset(["1", "20"], {"1", "20"}, 5.0).unload("20", 10.0)
    assert over(undone_first, {"1", "20"}, lambda _: False, now=1e6) == set()


def test_a_version_that_was_unloaded_comes_back_for_a_late_job_and_is_forgotten_after_a_while() -> None:
    rollout, late = LOADED.switch("1").unload("20", 10.0), 10.0 + FORGOTTEN_AFTER_S
    assert over(rollout, {"1"}, lambda _: False, now=late - 0.1) == set(), "a gateway that stood still may submit to it"
    assert over(rollout, {"1"}, lambda _: True, now=late) == set(), "its jobs are run before"
    assert rollout.without(over(rollout, {"1"}, lambda _: False, now=late)) == Rollout(default_version="1")


def test_a_month_of_deployments_leaves_no_record_but_of_the_last_minutes() -> None:
    # Regression: each version that was unloaded stayed in the record until a reset, and every beat of every worker asked the
    # store how many of its jobs wait.
    rollout, sizes = Rollout(), set[int]()
    for number in range(2, 720):
        new, old, now = str(number), str(number - 1), number * 3_600.0
        rollout = rollout.without(over(rollout, {"1"}, lambda _: False, now=now))
        rollout = rollout.load(new, {"source": "x.py"}).scaled(new, 1).switch(new).unload(old, now)
        sizes.add(max(len(rollout.added), len(rollout.removed), len(rollout.scale)))
    assert max(sizes) == 2, "the present version, and the one before; of those removed also that of the settings"
    assert rollout.undone == ()


def test_a_model_whose_last_version_was_unloaded_and_is_forgotten_leaves_no_trace() -> None:
    rollout = LOADED.unload("20", 5.0)
    assert rollout.without(over(rollout, set(), lambda _: False, now=1_000.0)) == Rollout()


def test_a_default_that_settings_took_over_stays_the_default() -> None:
    rollout = LOADED.reset(["1", "20"], {"1", "20"}, 5.0).switch("20")
    assert rollout.without(over(rollout, {"1", "20"}, lambda _: False, now=6.0)).default_version == "20"


def test_a_reset_in_the_middle_of_another_load_spares_what_is_loaded_afterwards() -> None:
    rollout = LOADED.reset(["1", "20"], {"1"}, 10.0).load("21", {"source": "next.py"})
    assert rollout.changes
    with pytest.raises(Conflict, match="removed"):
        check_load(ONE, rollout, "20")
    done = rollout.without(over(rollout, {"1"}, lambda _: False, now=100.0))
    assert done == Rollout().load("21", {"source": "next.py"})


def test_a_model_without_a_version_is_not_served() -> None:
    assert followed(ModelInfo("m", versions={}), None) is None


# Numbers of slots.


def test_a_number_of_slots_is_kept_until_a_reset_takes_it_back() -> None:
    rollout = Rollout().scaled("1", 3)
    assert (rollout.slots_of("1", has_waiting=True), rollout.slots_of("2", has_waiting=True)) == (3, None)
    assert rollout.changes
    assert rollout.reset(["1"], {"1"}, 10.0) == Rollout()


def test_a_version_that_is_loaded_anew_has_the_number_of_its_settings() -> None:
    rollout = Rollout().load("2", {"source": "two.py"}).scaled("2", 0).unload("2", 5.0)
    assert rollout.load("2", {"source": "other.py"}).scale == {}


def test_a_version_scaled_to_none_still_ends_its_jobs_when_it_is_unloaded() -> None:
    rollout = Rollout().scaled("1", 0)
    assert rollout.slots_of("1", has_waiting=True) == 0, "its jobs wait for the operator"
    assert rollout.unload("1", 5.0).slots_of("1", has_waiting=True) == 1
    assert rollout.unload("1", 5.0).slots_of("1", has_waiting=False) == 0


@pytest.mark.parametrize("slots", [-1, MOST_SLOTS + 1, 1.5, "2", True, None])
def test_what_is_no_number_of_slots_is_refused(slots: object) -> None:
    with pytest.raises(InvalidInput, match="whole number of slots"):
        check_scale(TWO, "2", slots)


def test_a_known_version_is_scaled_and_no_other() -> None:
    assert check_scale(TWO, "2", 0) == 0
    assert check_scale(TWO, "2", MOST_SLOTS) == MOST_SLOTS
    with pytest.raises(NotFound, match="no version '3'"):
        check_scale(TWO, "3", 1)


def test_a_version_that_is_off_on_purpose_may_become_the_default() -> None:
    check_switch(TWO, "2", ready_slots=0, is_off=True)


# A whole model.


def test_a_model_that_is_unloaded_is_served_no_more_and_what_no_settings_name_is_forgotten() -> None:
    rollout = LOADED.scaled("20", 2).unload_all(["1", "20"], {"1"}, 10.0)
    assert followed(ONE, rollout) is None
    assert (rollout.removed, rollout.undone, rollout.default_version) == ({"1": 10.0, "20": 10.0}, ("20",), "")
    late = rollout.without(over(rollout, {"1"}, lambda _: False, now=100.0))
    assert late == Rollout(removed={"1": 10.0}), "the settings' version stays away until a reset"
    assert late.reset(["1"], {"1"}, 20.0) == Rollout()


def test_a_model_that_no_settings_name_leaves_no_trace_once_it_is_unloaded() -> None:
    rollout = LOADED.scaled("20", 0).unload_all(["20"], set(), 10.0)
    assert rollout.without(over(rollout, set(), lambda _: False, now=100.0)) == Rollout()


def test_a_model_that_is_unloaded_while_the_worker_that_names_it_is_down_stays_away_when_that_worker_is_back() -> None:
    """Regression: it was taken for a model that no settings name, so the worker's next start undid the operator's unload."""
    rollout = Rollout().unload_all(["1"], set(), 10.0)
    later = rollout.without(over(rollout, set(), lambda _: False, now=1e6))
    back = later.without(over(later, {"1"}, lambda _: False, now=1e6))
    assert followed(ONE, back) is None
    assert back.reset(["1"], {"1"}, 20.0) == Rollout()


def test_what_a_reset_took_back_is_still_forgotten_after_an_unload_of_the_whole_model() -> None:
    rollout = Rollout().reset(["3"], set(), 5.0).unload_all(["3"], set(), 10.0)
    assert rollout.without(over(rollout, set(), lambda _: False, now=100.0)) == Rollout()


def test_a_version_unloaded_before_the_whole_model_keeps_its_moment() -> None:
    rollout = LOADED.switch("1").unload("20", 5.0).unload_all(["1", "20"], {"1"}, 10.0)
    assert rollout.removed == {"1": 10.0, "20": 5.0}


def test_the_name_of_a_settings_version_is_free_again_once_nothing_is_left_of_it() -> None:
    gone = Rollout().unload_all(["1"], {"1"}, 10.0)
    with pytest.raises(Conflict, match="still end its jobs"):
        check_load(ONE, gone, "1")
    check_load(ONE, gone, "1", is_free=True)
    served = followed(ONE, gone.load("1", {"source": "new.py"}))
    assert served is not None
    assert list(served.versions) == ["1"]


def test_a_version_that_is_to_be_forgotten_is_loaded_only_after_that() -> None:
    with pytest.raises(Conflict, match="still end its jobs"):
        check_load(None, LOADED.unload_all(["20"], set(), 10.0), "20", is_free=True)


# Whatever operators do, in whatever order.

VERSIONS = st.sampled_from(["1", "2", "3"])
NAMED = {"1", "2"}
STEPS = st.one_of(
    st.tuples(st.just("load"), VERSIONS),
    st.tuples(st.just("switch"), VERSIONS),
    st.tuples(st.just("scale"), VERSIONS),
    st.tuples(st.just("unload"), VERSIONS),
    st.tuples(st.just("unload all"), VERSIONS),
    st.tuples(st.just("reset"), VERSIONS),
    st.tuples(st.just("forget"), VERSIONS),
)


def stepped(rollout: Rollout, step: str, version: str, now: float) -> Rollout:
    match step:
        case "load":
            return rollout.load(version, {"source": "x.py"})
        case "switch":
            return rollout.switch(version)
        case "scale":
            return rollout.scaled(version, int(now) % 3)
        case "unload":
            return rollout.unload(version, now)
        case "unload all":
            return rollout.unload_all(["1", "2", "3"], NAMED, now)
        case "reset":
            return rollout.reset(["1", "2", "3"], NAMED, now)
        case _:
            return rollout.without(over(rollout, NAMED, lambda _: False, now=now + SETTLED_AFTER_S))


@given(st.lists(STEPS, max_size=12))
def test_whatever_operators_did_a_reset_leads_back_to_the_settings(steps: list[tuple[str, str]]) -> None:
    rollout, known = Rollout(), ModelInfo("m", "1", versions={"1": None, "2": None})
    for now, (step, version) in enumerate(steps):
        rollout = stepped(rollout, step, version, float(now))
        served = followed(known, rollout)
        if served is not None:
            assert served.default_version in served.versions, "callers who name no version find one"
            assert not served.versions.keys() & rollout.removed.keys()
    reset = rollout.reset(["1", "2", "3"], NAMED, 100.0)
    served = followed(known, reset)
    assert served is not None
    assert (set(served.versions), served.default_version) == (NAMED, "1")
    assert not reset.changes
    assert stepped(reset, "forget", "", 100.0) == Rollout(), "and nothing of it is kept for ever"


@given(st.lists(STEPS, max_size=12))
def test_a_model_that_was_unloaded_is_served_by_nobody_and_its_jobs_can_be_run(steps: list[tuple[str, str]]) -> None:
    rollout = Rollout()
    for now, (step, version) in enumerate(steps):
        rollout = stepped(rollout, step, version, float(now))
    gone = rollout.unload_all(["1", "2", "3"], NAMED, 100.0)
    assert followed(ModelInfo("m", "1", versions={"1": None, "2": None, "3": None}), gone) is None
    assert gone.added == rollout.added, "workers know where the code of waiting jobs lies"
    for version in ("1", "2", "3"):
        assert gone.slots_of(version, has_waiting=True) != 0


def test_an_added_version_may_be_batched_otherwise_and_keeps_the_rest_of_its_table() -> None:
    rollout = Rollout().load("2", {"source": "two.py", "max_wait_s": 0.1}).batched("2", {"max_batch_size": 8})
    assert rollout.added == {"2": {"source": "two.py", "max_wait_s": 0.1, "max_batch_size": 8}}
