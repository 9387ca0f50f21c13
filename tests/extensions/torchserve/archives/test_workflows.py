"""Workflows are read without running anything, and what is wrong with one is said before anything starts."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from penstock.errors import BadArchive, ConfigError
from penstock.extensions.pipelines.spec import pipeline_of
from penstock.extensions.torchserve.archives.workflows import WorkflowNode, read_workflow
from penstock.extensions.torchserve.settings.table import WorkflowTables
from penstock.settings.tables import Settings

SPEC = """
models:
  min-workers: 1
  max-workers: 3
  batch-size: 4
  cat:
    url: cat.mar
    max-batch-delay: 25
  dog:
    url: dog.mar
    retry-attempts: 5
    timeout-ms: 1500
dag:
  prepare: [cat, dog]
  cat: [both]
  dog: [both]
"""
PREPARE = "def prepare(data, context): ...\ndef both(data, context): ...\n"


def war(folder: Path, spec: str = SPEC, code: str = PREPARE, **members: str) -> Path:
    path = folder / "pets.war"
    about = {"workflowName": "pets", "specFile": "spec.yaml", "handler": "functions.py"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("WAR-INF/MANIFEST.json", json.dumps({"workflow": about}))
        archive.writestr("spec.yaml", spec)
        archive.writestr("functions.py", code)
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def test_nodes_have_their_settings_and_what_is_before_them(tmp_path: Path) -> None:
    found = read_workflow(war(tmp_path))
    shared = {"min-workers": 1, "max-workers": 3, "batch-size": 4}
    assert (found.name, found.handler) == ("pets", "functions.py")
    assert found.nodes == (
        WorkflowNode("prepare"),
        WorkflowNode("cat", "cat.mar", {**shared, "max-batch-delay": 25}, ("prepare",)),
        WorkflowNode("dog", "dog.mar", {**shared, "retry-attempts": 5, "timeout-ms": 1500}, ("prepare",)),
        WorkflowNode("both", parents=("cat", "dog")),
    )


def test_a_workflow_is_settings_of_a_pipeline_and_of_a_model_per_node_and_the_file_stands_over_them(tmp_path: Path) -> None:
    source = war(tmp_path)
    config = tmp_path / "penstock.toml"
    config.write_text('[workflows.zoo]\nsource = "pets.war"\nmodel_store = "store"\n[models.zoo__cat]\nmax_wait_s = 0.5\n')
    settings = Settings.load(config, {})
    assert sorted(settings.models) == ["zoo__both", "zoo__cat", "zoo__dog", "zoo__prepare"]
    cat, dog, both = (settings.models[f"zoo__{name}"] for name in ("cat", "dog", "both"))
    assert (cat.source, cat.max_batch_size, cat.max_wait_s, cat.slots) == (str(tmp_path / "store/cat.mar"), 4, 0.5, 3)
    assert (dog.source, dog.max_run_s, dog.max_attempts, dog.retry_on) == (
        str(tmp_path / "store/dog.mar"),
        1.5,
        5,
        ("handler_error",),
    )
    assert (both.source, both.options["handler"], both.max_batch_size) == (str(source), "functions.py:both", 1)
    [spec] = settings.driven_specs()
    pipeline = pipeline_of(spec)
    assert pipeline is not None
    assert [(one.name, one.model, one.input) for one in pipeline.stages] == [
        ("prepare", "zoo__prepare", ""),
        ("cat", "zoo__cat", {"body": "prepare"}),
        ("dog", "zoo__dog", {"body": "prepare"}),
        ("both", "zoo__both", {"cat": "cat", "dog": "dog"}),
    ]
    assert settings.origin("models.zoo__cat.max_batch_size") == f"workflow {source}"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("models: {a: {}}\ndag: {a: [b]}", "models.a names no url"),
        ("models: {a: {url: a.mar, batch: 3}}\ndag: {a: [b]}", "'batch' is no setting of a workflow"),
        ("models: {a: {url: a.mar, batch-size: zero}}\ndag: {a: [b]}", "batch-size is 'zero', not a whole number"),
        ("models: {a: {url: a.mar}, c: {url: c.mar}}\ndag: {a: [b]}", "models.c is in no line of the dag"),
        ("models: {a: {url: a.mar}}\ndag: {a: {b: 1}}", "dag.a is no list of nodes"),
        ("dag: {a.b: [c]}", "'a.b' is no name of a node"),
        ("{}", "neither a dag nor models"),
        ("- 1", "neither a dag nor models"),
        ("!!python/object/apply:os.system [true]", "is not valid YAML"),
    ],
)
def test_what_is_wrong_with_a_specification_is_said(tmp_path: Path, spec: str, said: str) -> None:
    with pytest.raises(BadArchive) as refused:
        read_workflow(war(tmp_path, spec))
    assert said in refused.value.message


def test_what_is_no_workflow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.war"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("spec.yaml", SPEC)
    with pytest.raises(BadArchive, match="missing or has no object `workflow`"):
        read_workflow(path)
    with pytest.raises(BadArchive, match="outside"):
        read_workflow(war(tmp_path, **{"../evil.py": ""}))


def test_nodes_that_wait_for_each_other_and_files_that_are_missing_are_refused_at_the_start(tmp_path: Path) -> None:
    war(tmp_path, "dag: {a: [b], b: [a]}", "def a(): ...\ndef b(): ...\n")
    config = tmp_path / "penstock.toml"
    config.write_text('[workflows.loop]\nsource = "pets.war"\n[workflows.gone]\nsource = "gone.war"\n')
    with pytest.raises(ConfigError) as refused:
        Settings.load(config, {}, need_files=True)
    assert any("stages a, b wait for each other" in fault for fault in refused.value.faults)
    assert any("gone.war: no such file" in fault for fault in refused.value.faults)
    config.write_text('[workflows.gone]\nsource = "gone.war"\n')
    assert list(Settings.load(config, {}).extension(WorkflowTables).root) == ["gone"]
