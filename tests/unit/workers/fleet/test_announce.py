from __future__ import annotations

from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo
from penstock.workers.fleet.announce import differing, merged, peers, pruned, swept

LOADED = VersionInfo({"type": "integer"})


def slot(version: str = "1", state: str = "ready") -> SlotInfo:
    return SlotInfo("m", version, state)


def test_what_was_loaded_here_is_added_to_what_others_know() -> None:
    known = ModelInfo("m", versions={"1": LOADED, "9": LOADED})
    declared = ModelInfo("m", default_version="2", versions={"1": None, "2": None})
    found = merged(declared, {"2": LOADED}, known)
    assert found.versions == {"1": LOADED, "2": LOADED, "9": LOADED}
    assert found.default_version == "2"


def test_a_model_nobody_loaded_is_told_as_declared() -> None:
    assert merged(ModelInfo("m", versions={"1": None}), {}, None).versions == {"1": None}


def test_a_version_that_others_fetched_at_another_commit_is_noticed() -> None:
    ours, same, bare = VersionInfo(source="hf://o/n@a/m.onnx"), VersionInfo(source="hf://o/n@b/m.onnx"), VersionInfo()
    known = ModelInfo("m", versions={"1": VersionInfo(source="hf://o/n@b/m.onnx"), "2": None, "3": bare})
    assert differing({"1": ours, "2": ours, "3": ours, "4": ours}, known) == [("1", ours.source, "hf://o/n@b/m.onnx")]
    assert differing({"1": same}, known) == differing({"1": bare}, known) == differing({"1": ours}, None) == []


def test_peers_are_the_other_ready_slots_of_the_same_version_anywhere() -> None:
    here = [slot(), slot(), slot("2"), slot(state="loading")]
    elsewhere = WorkerInfo("b", "h", 1, 0.0, slots=(slot(), slot(state="failed")))
    own = WorkerInfo("a", "h", 2, 0.0, slots=tuple(here))
    assert peers("m", "1", here=here, workers=[own, elsewhere], own_name="a") == 2
    assert peers("m", "2", here=here, workers=[own, elsewhere], own_name="a") == 0


def test_a_model_whose_default_version_is_forgotten_has_another_of_its_own() -> None:
    left = pruned(ModelInfo("m", "1", versions={"1": LOADED, "2": LOADED}), {"1"})
    assert (left.default_version, left.versions) == ("2", {"2": LOADED})
    assert pruned(left, {"2"}).versions == {}


def test_a_model_that_was_forgotten_is_swept_no_more_and_one_that_others_serve_still_is() -> None:
    # Regression: a worker swept every model that it had ever served, until it was restarted.
    served, left = ModelInfo("served"), ModelInfo("left")
    other = WorkerInfo("other", "h", 1, 0.0, (SlotInfo("served", "1", "ready"),))
    assert swept({"own", "served", "forgotten"}, {"own"}, [served, left], [other]) == {"own", "served", "left"}
