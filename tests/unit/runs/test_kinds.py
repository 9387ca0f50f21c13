from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.extension import installed
from penstock.run import RunSpec
from penstock.runs.kinds import OVER_FILES, RunKind, run_kind
from penstock.runs.run_files import need_joinable

# A run over files asks no extension; the first run of another kind imports that kind alone.
LOOKED_UP = """
import sys
from penstock.runs.execution import run_kind

def loaded():
    return sorted(name for name in sys.modules if name.startswith("penstock.extensions.openai"))

run_kind("files")
print(loaded())
run_kind("openai")
print("penstock.extensions.openai.runs.batch" in loaded(), [name for name in loaded() if ".gateway" in name])
"""


def test_every_kind_that_an_extension_names_is_found_by_its_word() -> None:
    kinds = [name for extension in installed() for name in extension.run_kinds]
    assert kinds
    assert all(isinstance(run_kind(name), RunKind) for name in kinds)


def test_runs_of_a_kind_that_nothing_here_brings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot drive runs of the kind 'videos'"):
        run_kind("videos")


def test_a_kind_is_imported_by_the_first_run_that_needs_it(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", LOOKED_UP], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["[]", "True []"]


def test_only_runs_of_a_kind_that_can_be_split_have_several_parts() -> None:
    spec = RunSpec(model="m", input="in.jsonl", output="out.jsonl", parts=2)
    need_joinable(OVER_FILES, spec)
    with pytest.raises(InvalidInput, match="only runs over files"):
        need_joinable(run_kind("openai"), spec)
