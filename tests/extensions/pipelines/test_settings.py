"""Pipelines in the settings: read from a file, checked with the models."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.extensions.pipelines.settings import PipelineTables
from penstock.extensions.pipelines.spec import pipeline_of
from penstock.settings.tables import Settings

MODELS = '[models.detect]\nsource = "m.py"\n[models.pose]\nsource = "m.py"\n'


def load(folder: Path, text: str, env: dict[str, str] | None = None) -> Settings:
    config = folder / "penstock.toml"
    config.write_text(MODELS + text)
    return Settings.load(config, env or {})


def test_a_pipeline_is_a_model_of_its_name_with_limits_of_its_own(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        [pipelines.people]
        deadline_s = 60
        output = { joints = "joints", boxes = "boxes.boxes" }
        [[pipelines.people.stages]]
        name = "boxes"
        model = "detect"
        [[pipelines.people.stages]]
        name = "joints"
        model = "pose"
        version = "2"
        input = { image = "input", boxes = "boxes.boxes" }
        """,
    )
    [spec] = settings.driven_specs()
    assert (spec.name, spec.version, spec.limits.deadline_s, spec.source) == ("people", "1", 60.0, "")
    pipeline = pipeline_of(spec)
    assert pipeline is not None
    joints = pipeline.stage("joints")
    assert (joints.version, pipeline.parents(joints)) == ("2", ("boxes",))
    assert settings.served_names == ["detect", "pose", "people"]
    assert [info.name for info in settings.model_infos()] == ["detect", "pose", "people"]
    assert [one.name for one in settings.specs()] == ["detect", "pose"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[pipelines.p]\nstages = [{name = "a", model = "detekt"}]',
            "no model is named 'detekt'; did you mean detect?",
        ),
        ('[pipelines.p]\nstages = [{name = "a", model = "zebra"}]', "declare it in [models.zebra], or name it in `elsewhere`"),
        ('[pipelines.p]\nstages = [{name = "a", model = "pose", after = ["b"]}]', "after names 'b'"),
        ("[pipelines.p]\nstages = []", "has 1 to 64 stages"),
        ('[pipelines.pose]\nstages = [{name = "a", model = "detect"}]', "there is a model of this name too"),
        ('[pipelines.p]\nstages = [{name = "a", model = "p"}]', "each is a stage of itself"),
        ('[pipelines.p]\nstages = [{name = "a", model = "pose", retries = 3}]', "pipelines.p.stages.0.retries"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert any(said in fault for fault in refused.value.faults), refused.value.faults


def test_models_of_other_workers_are_named(tmp_path: Path) -> None:
    settings = load(tmp_path, '[pipelines.p]\nelsewhere = ["zebra"]\nstages = [{name = "a", model = "zebra"}]')
    assert list(settings.extension(PipelineTables).root) == ["p"]


def test_pipelines_come_from_the_environment_too(tmp_path: Path) -> None:
    env = {"PENSTOCK_PIPELINES": '{"p": {"stages": [{"name": "a", "model": "pose"}]}}'}
    assert list(load(tmp_path, "", env).extension(PipelineTables).root) == ["p"]
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, "", {"PENSTOCK_PIPELINES": "[]"})
    assert "must be a JSON object of pipelines by name" in refused.value.faults[0]
