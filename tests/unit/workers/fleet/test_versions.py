from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model_spec import ModelInfo
from penstock.rollout import SETTLED_AFTER_S, Rollout
from penstock.settings.tables import Settings
from penstock.workers.fleet.versions import ServedVersions, VersionChange

SECOND = {"m": Rollout().load("2", {"source": "two.py"})}


@pytest.fixture
def served(tmp_path: Path) -> ServedVersions:
    for name in ("one.py", "two.py"):
        (tmp_path / name).touch()
    config = tmp_path / "penstock.toml"
    config.write_text('[worker]\nmodel_dir = "."\n[models.m]\nsource = "one.py"\n')
    return ServedVersions(Settings.load(config, {}))


def changed(served: ServedVersions, rollouts: dict[str, Rollout], *, now: float = 0.0) -> tuple[list[str], list[str]]:
    change = served.follow(rollouts, lambda *_: 0, now=now)
    return [spec.version for spec in change.to_start], [version for _, version in change.to_retire]


def test_without_rollouts_nothing_changes(served: ServedVersions) -> None:
    assert served.follow({}, lambda *_: 0, now=0.0) == VersionChange()


def test_an_added_version_is_to_be_started_until_it_was(served: ServedVersions) -> None:
    assert changed(served, SECOND) == (["2"], [])
    [spec] = [spec for spec in served.specs if spec.version == "2"]
    served.refuse(spec, "no free GPU")
    assert served.refused == {("m", "2"): "no free GPU"}
    assert changed(served, SECOND) == (["2"], []), "its place may be free by now"
    served.mark_started(spec)
    assert changed(served, SECOND) == ([], [])
    assert served.refused == {}


def test_a_removed_version_is_retired_once(served: ServedVersions) -> None:
    rollouts = {"m": Rollout().unload("1", 100.0)}
    assert changed(served, rollouts, now=100.0) == ([], [])
    assert changed(served, rollouts, now=100.0 + SETTLED_AFTER_S) == ([], ["1"])
    served.mark_retired(("m", "1"))
    assert changed(served, rollouts, now=100.0 + SETTLED_AFTER_S) == ([], [])


def test_a_version_whose_file_comes_back_is_not_started_twice(served: ServedVersions, tmp_path: Path) -> None:
    """The slots of the version run on without its file; a second start would have doubled them."""
    changed(served, SECOND)
    served.mark_started(served.specs[-1])
    (tmp_path / "two.py").rename(tmp_path / "aside.py")
    assert changed(served, SECOND) == ([], [])
    assert "there is no two.py" in served.refused["m", "2"]
    (tmp_path / "aside.py").rename(tmp_path / "two.py")
    assert changed(served, SECOND) == ([], [])


def test_the_default_version_is_the_operators(served: ServedVersions) -> None:
    [spec] = served.specs
    assert served.info(spec).default_version == "1"
    changed(served, {"m": SECOND["m"].switch("2")})
    assert served.info(spec).default_version == "2"


def test_the_versions_of_a_model_are_those_that_anybody_announced_and_nobody_removed(served: ServedVersions) -> None:
    """A stock Celery message may name a version that only another worker serves."""
    [spec] = served.specs
    served.announced = {"m": ModelInfo("m", "3", versions={"1": None, "3": None, "4": None})}
    changed(served, {"m": SECOND["m"].unload("4", 0.0)})
    assert sorted(served.info(spec).versions) == ["1", "2", "3"]
    assert served.info(spec).default_version == "1"


def test_a_version_that_an_operator_scaled_is_known_with_its_number(served: ServedVersions) -> None:
    changed(served, {"m": SECOND["m"].scaled("2", 3)})
    assert served.scaled == {("m", "2"): 3}
    changed(served, SECOND)
    assert served.scaled == {}


def test_a_removed_version_that_was_scaled_to_none_runs_its_waiting_jobs(served: ServedVersions) -> None:
    rollouts = {"m": Rollout().scaled("1", 0).unload("1", 100.0)}
    served.follow(rollouts, lambda *_: 5, now=200.0)
    assert served.scaled == {("m", "1"): 1}
    assert [spec.version for spec in served.specs] == ["1"]


def test_a_name_that_was_given_to_other_code_while_this_worker_stood_still_is_loaded_anew(served: ServedVersions) -> None:
    changed(served, SECOND)
    served.mark_started(served.specs[-1])
    other = {"m": Rollout().load("2", {"source": "one.py"})}
    assert changed(served, other) == (["2"], ["2"])
    served.mark_retired(("m", "2"))
    served.mark_started(served.specs[-1])
    assert changed(served, other) == ([], [])


def test_a_version_of_the_settings_that_was_loaded_with_other_code_is_not_run_as_the_settings_say(
    served: ServedVersions, tmp_path: Path
) -> None:
    other = {"m": Rollout().load("1", {"source": "two.py"})}
    assert changed(served, other) == (["1"], ["1"])
    assert [spec.source for spec in served.specs] == [str(tmp_path / "two.py")]
    (tmp_path / "two.py").unlink()
    served.mark_retired(("m", "1"))
    assert changed(served, other) == ([], [])
    assert "there is no two.py" in served.refused["m", "1"]


def test_new_jobs_are_wanted_of_all_versions_but_the_removed_ones(served: ServedVersions) -> None:
    [spec] = served.specs
    assert served.is_wanted(spec)
    changed(served, {"m": Rollout().unload("1", 0.0)})
    assert not served.is_wanted(spec)
