from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.rollout import SETTLED_AFTER_S, Rollout
from penstock.settings.tables import Settings
from penstock.workers.fleet.rollouts import find_source, known_specs, served_keys


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "models").mkdir()
    for name in ("one.py", "models/two.py"):
        (tmp_path / name).touch()
    config = tmp_path / "penstock.toml"
    config.write_text('[worker]\nmodel_dir = "models"\n[models.m]\nsource = "one.py"\nmax_batch_size = 4\nmax_run_s = 9\n')
    return Settings.load(config, {})


def test_an_added_version_takes_what_it_leaves_out_from_its_model(settings: Settings, tmp_path: Path) -> None:
    specs, refused = known_specs(settings, {"m": Rollout().load("2", {"source": "two.py", "max_batch_size": 16})})
    assert refused == {}
    added = specs["m", "2"]
    assert added.source == str(tmp_path / "models" / "two.py")
    assert (added.policy.max_batch_size, added.limits.max_run_s) == (16, 9.0)


def test_a_version_whose_file_is_not_here_is_refused_by_this_worker_with_the_reason(settings: Settings) -> None:
    specs, refused = known_specs(settings, {"m": Rollout().load("2", {"source": "three.py"})})
    assert ("m", "2") not in specs
    assert "there is no three.py" in refused["m", "2"]


@pytest.mark.parametrize("source", ["../one.py", "/etc/passwd", "out/one.py", "out/one.py:Name"])
def test_a_source_cannot_lead_out_of_the_folder_of_models(settings: Settings, tmp_path: Path, source: str) -> None:
    (tmp_path / "models" / "out").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="does not lie"):
        find_source(source, settings.worker.model_dir)


def test_a_worker_without_a_folder_of_models_loads_nothing_at_run_time() -> None:
    with pytest.raises(ConfigError, match="model_dir is not set"):
        find_source("two.py", None)


def test_a_removed_version_is_served_until_every_gateway_knows_and_nothing_waits() -> None:
    keys = {("m", "1"), ("m", "2"), ("other", "1")}
    rollouts = {"m": Rollout().unload("1", 100.0)}
    waiting = {("m", "1"): 0}

    def served_at(now: float) -> set[tuple[str, str]]:
        return served_keys(keys, {("m", "1")}, rollouts, lambda model, version: waiting[model, version], now=now)

    assert served_at(100.0 + SETTLED_AFTER_S - 0.1) == keys
    assert served_at(100.0 + SETTLED_AFTER_S) == keys - {("m", "1")}
    waiting["m", "1"] = 3
    assert served_at(1_000.0) == keys, "a job that came back is run, not left lying"


def test_a_version_that_a_reset_took_back_ends_its_jobs_unless_the_workers_own_settings_name_it() -> None:
    # Regression: a reset dropped the whole rollout; the slots ended at the next beat, and 46 of 60 jobs stayed queued.
    keys, own = {("m", "1"), ("m", "2"), ("m", "20")}, {("m", "1"), ("m", "2")}
    rollouts = {"m": Rollout().load("20", {"source": "x.py"}).reset(["1", "2", "20"], {"1"}, 100.0)}
    assert served_keys(keys, own, rollouts, lambda *_: 46, now=200.0) == keys
    assert served_keys(keys, own, rollouts, lambda *_: 0, now=200.0) == own, "version 2 is named here, whatever gateways know"


def test_a_version_that_a_reset_gave_back_to_the_settings_is_run_as_they_say(settings: Settings, tmp_path: Path) -> None:
    # The version is made permanent: it is loaded at run time, written into the settings, and the rollout is then reset.
    rollout = Rollout().load("1", {"source": "two.py"}).reset([], {"1"}, 100.0)
    specs, _ = known_specs(settings, {"m": rollout})
    assert specs["m", "1"].source == str(tmp_path / "one.py")
