"""`penstock up people.py`, where the file declares a pipeline: read in a process of its own, and handed on as settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.serve.setup import serve_setup
from penstock.errors import ConfigError
from penstock.extensions.pipelines.files import declares_pipelines, read_pipelines
from penstock.extensions.pipelines.spec import pipeline_of

PEOPLE = """
import os
import penstock

print("said while it is imported")
assert not [name for name in os.environ if name.startswith(("PENSTOCK_", "REDIS_"))]

@penstock.model
def boxes(item: dict) -> dict:
    return item

people = penstock.pipeline("people", {"boxes": boxes, "again": penstock.stage(boxes, input="boxes")}, deadline_s=9)
"""


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.py"
    path.write_text(PEOPLE)
    return path


@pytest.mark.parametrize(
    ("text", "declares"),
    [
        (PEOPLE, True),
        ("from penstock import pipeline\np = pipeline('p', {})", True),
        ("def pipeline(x): ...\n\ndef later():\n    pipeline(1)\n", False),
        ("import sklearn.pipeline\nmade = sklearn.pipeline.make_pipeline(1)", False),
        ("pipeline(", False),
    ],
)
def test_a_file_is_known_to_declare_pipelines_without_being_run(tmp_path: Path, text: str, declares: bool) -> None:
    (tmp_path / "m.py").write_text(text)
    assert declares_pipelines(tmp_path / "m.py") is declares


def test_the_pipeline_and_its_models_become_settings_of_the_processes(
    people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://:secret@nowhere")
    chosen = serve_setup(["people.py"], config=None, flags={}, environ={}, folder=tmp_path, need_files=True)
    assert list(chosen.settings.models) == ["boxes"]
    assert json.loads(chosen.env["PENSTOCK_MODELS"]) == {"boxes": {"source": f"{people}:boxes"}}
    [spec] = chosen.settings.driven_specs()
    assert (spec.name, spec.limits.deadline_s, [stage.model for stage in pipeline_of(spec).stages]) == (  # type: ignore[union-attr]
        "people",
        9.0,
        ["boxes", "boxes"],
    )


def test_a_setting_that_no_pipeline_has_is_refused_as_in_a_file(people: Path, tmp_path: Path) -> None:
    people.write_text(PEOPLE.replace("deadline_s=9", "deadlines=9"))
    with pytest.raises(ConfigError) as refused:
        serve_setup(["people.py"], config=None, flags={}, environ={}, folder=tmp_path)
    assert "deadlines" in " ".join(refused.value.faults)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('people = penstock.pipeline("people", {"a": 3})', "cannot be served"),
        ('import no_such_package\npeople = penstock.pipeline("p", {})', "no_such_package"),
        ('raise SystemExit(3)\npeople = penstock.pipeline("p", {})', "ended the process while being imported"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_own_words(people: Path, line: str, why: str) -> None:
    people.write_text(f"import penstock\n{line}\n")
    with pytest.raises(ConfigError, match="its pipelines cannot be read") as refused:
        read_pipelines(people)
    assert why in refused.value.message
