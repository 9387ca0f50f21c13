"""`requirements` of a model: a list, or the path of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.settings.tables import Settings


def load(folder: Path, table: str, *, need_files: bool = False) -> Settings:
    (folder / "m.py").touch()
    (folder / "penstock.toml").write_text(f"[models.m]\nsource = 'm.py'\n{table}")
    return Settings.load(folder / "penstock.toml", {}, need_files=need_files)


def test_a_version_has_a_list_of_its_own_or_that_of_the_model(tmp_path: Path) -> None:
    table = "requirements = ['torch>=2.4', 'pillow']\n[models.m.versions.2]\n[models.m.versions.3]\nrequirements = []\n"
    found = {spec.version: spec.requirements for spec in load(tmp_path, table).specs()}
    assert found == {"1": ("torch>=2.4", "pillow"), "2": ("torch>=2.4", "pillow"), "3": ()}


def test_a_file_is_found_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    table = "requirements = 'requirements.txt'\n[models.m.versions.2]\nrequirements = '/etc/more.txt'\n"
    assert [spec.requirements for spec in load(tmp_path, table).specs()] == [
        (f"-r {tmp_path}/requirements.txt",),
        ("-r /etc/more.txt",),
    ]


def test_a_file_that_is_missing_is_a_fault_where_the_files_are_needed(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    assert load(tmp_path, "requirements = 'requirement.txt'").specs()
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "requirements = 'requirement.txt'", need_files=True)
    assert "models.m.requirements: " in caught.value.faults[0]
    assert "did you mean requirements.txt?" in caught.value.faults[0]


def test_a_line_that_is_no_requirement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "requirements = ['pillow', 'torch >> 2']")
    assert caught.value.faults[0].startswith(
        "models.m.requirements.1: 'torch >> 2' is no requirement; write it as in \"pillow>=10\", or the path of one file"
    )


@pytest.mark.parametrize("requirements", ["/etc/passwd", ["-r /etc/passwd"]])
def test_a_version_that_is_added_at_run_time_names_no_file_of_its_worker(tmp_path: Path, requirements: object) -> None:
    settings = load(tmp_path, "")
    assert settings.added_spec("m", "2", {"source": "m.py", "requirements": ["pillow"]}).requirements == ("pillow",)
    with pytest.raises(ConfigError) as caught:
        settings.added_spec("m", "2", {"source": "m.py", "requirements": requirements})
    assert caught.value.faults == [
        'requirements: write them as a list, ["pillow>=10"]; a file can be named in the settings of workers only'
    ]
