from __future__ import annotations

import pytest

from penstock.errors import Conflict, NotFound
from penstock.model_spec import ModelInfo, VersionInfo
from penstock.rollout import Rollout, check_load, check_switch, check_unload, followed

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
