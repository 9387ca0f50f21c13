"""Runs over files that bring their own store and worker, as a user starts and resumes them."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.test_cli import COMMAND, clean_environment
from tests.acceptance.test_runs import MODEL, alone, expected, outputs, write_input

BROUGHT = ("--models", "double=double.py:Double")


def test_alone_a_misspelt_model_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    """The command once waited five minutes for its own worker to load the misspelt model, and printed "is being loaded"."""
    (tmp_path / "double.py").write_text(MODEL)
    (tmp_path / "penstock.toml").write_text('[models.double]\nsource = "double.py:Double"\n')
    write_input(tmp_path / "in.jsonl", 5)
    for named in (["--models", "double=double.py:Double"], []):
        done = alone(tmp_path, "run", "duoble", "in.jsonl", "-o", "out.jsonl", *named)
        assert done.returncode == 5, done.stdout + done.stderr
        assert "no model 'duoble' is served; did you mean double? the served models are double" in done.stderr
        assert not (tmp_path / ".penstock" / "run-worker.log").exists()
    # The refused command has created no run.
    assert alone(tmp_path, "run", "list").stderr.strip() == "no runs"


@dataclass
class Begun:
    """A run that brought its own store and worker, and failed at the one row that cannot be run."""

    folder: Path
    id: str
    next_step: list[str]


@pytest.fixture(scope="module")
def begun(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "double.py").write_text(MODEL)
    (folder / "penstock.toml").write_text('[models.other]\nsource = "double.py:Double"\n')
    (folder / "elsewhere").mkdir()
    write_input(folder / "in.jsonl", 5, row_3={"x": "text"})
    command = [*COMMAND, "run", "double", "in.jsonl", "-o", "out.jsonl", "--max-failed", "0", *BROUGHT]
    state = ("--state-dir", str(folder / "my state"))
    done = subprocess.run(
        [*command, *state], cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    _, found, printed = done.stdout.rpartition("penstock ")
    assert found, done.stdout + done.stderr
    return Begun(folder, done.stdout.split()[1], shlex.split(printed))


def test_alone_a_run_is_not_resumed_without_its_model_and_stays_as_it_was(begun: Begun) -> None:
    """The command once waited for workers of a model that no process would ever start."""
    state = ("--state-dir", "my state")
    remembered = begun.folder / "my state" / "runs" / f"{begun.id}.sources.json"
    kept = remembered.read_text()
    remembered.unlink()
    done = alone(begun.folder, "run", "resume", begun.id, "--max-failed", "1", *state)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "no model 'double' is served; the served models are other" in done.stderr
    assert "--models SOURCE" in done.stderr
    assert json.loads(alone(begun.folder, "run", "show", begun.id, "--json", *state).stdout)["state"] == "failed"
    # With its model the run goes on, and ends where it ended before.
    brought = alone(begun.folder, "run", "resume", begun.id, "--max-failed", "0", *state, *BROUGHT)
    assert "too_many_failed" in brought.stdout, brought.stdout + brought.stderr
    remembered.write_text(kept)


def test_alone_a_run_brings_its_own_store_and_worker_and_is_resumed_with_them_in_the_folder_of_its_start(begun: Begun) -> None:
    # Regression: the printed next step failed, for want of --state-dir and --models.
    # From another folder too: sources are remembered with their paths.
    done = alone(begun.folder / "elsewhere", *begun.next_step)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(begun.folder / "out.jsonl") == expected(5, 3)
