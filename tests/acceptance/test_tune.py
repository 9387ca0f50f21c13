"""`penstock tune` as a user runs it: the command searches a tiny space, writes the winner and keeps all measurements."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest

from penstock.cli import exits
from penstock.extensions.pipelines.tune import candidates as pipeline_candidates
from penstock.extensions.pipelines.tune import search as pipeline_search
from penstock.extensions.pipelines.tune.result import read_pipeline_result
from penstock.tune import candidates, trials
from penstock.tune.measuring.notebook import Notebook, SearchSubject
from penstock.tune.result import ConfigurationVerdict, Overheads, TuneResult
from tests.acceptance.test_cli import COMMAND, clean_environment
from tests.command import called_here

MODEL = """
import time
from penstock import Handler

class Paced(Handler):
    \"\"\"4 ms a batch, and a little per item.\"\"\"

    def inference(self, batch: list[float], /) -> list[float]:
        time.sleep(0.004 + 0.0005 * len(batch))
        return [value * 2.0 for value in batch]
"""
SETTINGS = '[models.paced]\nsource = "paced.py:Paced"  # ours\nmax_batch_size = 8\n'
TINY = ("--space", "batch_size=1,4", "--space", "slots=1", "--space", "threads=1", "--budget", "10s", "--input", "2.5")
# Any machine carries this rate: the search is under test and not the machine. With this budget each load takes 1.5 s, and at
# this rate its last call comes 0.8 s before its end, so that a machine that stalls meanwhile still answers them all in time.
RARE = 1.7


def tune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "tune", *arguments]
    environment = clean_environment()
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=folder, env=environment)


def project(folder: Path) -> Path:
    (folder / "paced.py").write_text(MODEL)
    (folder / "penstock.toml").write_text(SETTINGS)
    return folder


def test_a_small_space_is_searched_confirmed_and_its_winner_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project(tmp_path)
    # The steps of the search and its stacks are under test, and not how exact a simulation of thousands of jobs is.
    monkeypatch.setattr(candidates, "_JOBS", 300)
    monkeypatch.setattr(trials, "_JOBS", 300)
    # A measurement of penstock's own cost needs a running stack; saved figures of an earlier search make it unnecessary.
    overheads = Overheads(claim_s=0.0002, feed_s=0.0002, request_s=0.004, per_item_s=0.001, per_batch_s=0.001)
    _remember(folder, overheads)
    written = ("--write", "penstock.toml", "--report", "result.json", "--resume", "state.jsonl", "--price-per-hour", "3.6")
    words = ("tune", "paced", "--slo", "p99=10s", "--min-rate", str(RARE), *TINY, *written, "--json")
    done = called_here(*words, cwd=folder, env=clean_environment())
    result = msgspec.json.decode(done.stdout, type=TuneResult)
    assert (folder / "result.json").read_bytes().strip() == done.stdout.strip().encode()
    winner = result.winner
    assert (done.returncode, winner is not None) == (exits.OK, True), done.stderr
    assert winner is not None
    assert winner.confirmed is not None
    assert winner.confirmed.tail_ms <= 10_000.0
    assert winner.cost_per_million == pytest.approx(1_000 / RARE)
    assert {one.choice.batch_size for one in result.configurations} == {1, 4}
    assert all(one.why for one in result.configurations)
    assert [time.size for time in result.measured[0].times] == [1, 4]
    assert result.measured[0].times[0].inference_s >= 0.0045
    table = tomllib.loads((folder / "penstock.toml").read_text())["models"]["paced"]
    assert (table["max_batch_size"], table["threads"]) == (winner.choice.batch_size, 1)
    assert "# ours" in (folder / "penstock.toml").read_text()
    kinds = [json.loads(line)["kind"] for line in (folder / "state.jsonl").read_text().splitlines()]
    assert {"about", "measured", "overheads", "confirmed"} <= set(kinds)
    assert not list(folder.glob(".penstock-tune-*"))


PIPELINE = """
[models.paced]
source = "paced.py:Paced"  # ours
max_batch_size = 4

[models.after]
source = "paced.py:Paced"
max_batch_size = 4

[pipelines.both.output]
value = "second"

[[pipelines.both.stages]]
name = "first"
model = "paced"

[[pipelines.both.stages]]
name = "second"
model = "after"
after = ["first"]
"""


def test_the_models_of_a_pipeline_are_tuned_within_a_bound_on_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)
    # At this rate loads with enough calls for a tail would take half a minute each; the steps are under test here.
    monkeypatch.setattr(pipeline_search, "_FEWEST_CALLS", 1)
    monkeypatch.setattr(pipeline_search, "_MOST_S", 1.5)
    monkeypatch.setattr(pipeline_candidates, "_JOBS", 100)
    # The comparison with the settings of today would be a third stack, as the winner's.
    monkeypatch.setattr(pipeline_search.PipelineSearch, "_confirm_declared", lambda search, declared: None)
    (folder / "penstock.toml").write_text(PIPELINE)
    _remember(folder, Overheads(request_s=0.004, per_item_s=0.001), book="state.paced.jsonl")
    space = ("--space", "batch_size=4", "--space", "slots=1", "--space", "threads=1", "--space", "after.batch_size=1,2")
    asked = ("--slo", "p99=10s", "--min-rate", str(RARE), "--budget", "60s", "--input", "2.5", "--resume", "state.jsonl")
    done = called_here(
        "tune",
        "both",
        *space,
        *asked,
        "--write",
        "penstock.toml",
        "--report",
        "r.html",
        "--json",
        cwd=folder,
        env=clean_environment(),
    )
    result = read_pipeline_result(done.stdout.encode())
    assert done.returncode == exits.OK, [(one.why, one.confirmed) for one in result.configurations]
    winner = result.winner
    assert winner is not None
    assert winner.confirmed is not None
    assert winner.rerun is not None
    assert {model: choice.batch_size for model, choice in winner.choice.choices.items()}["paced"] == 4
    assert {one.choice.choices["after"].batch_size for one in result.configurations} == {1, 2}
    tables = tomllib.loads((folder / "penstock.toml").read_text())["models"]
    assert {name: table["max_batch_size"] for name, table in tables.items()} == {
        name: choice.batch_size for name, choice in winner.choice.choices.items()
    }
    page = (folder / "r.html").read_text()
    assert "a pipeline of paced, after" in page
    assert not list(folder.glob(".penstock-tune-*"))


def test_what_cannot_be_asked_of_a_pipeline_is_refused(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "penstock.toml").write_text(PIPELINE)
    for words, why in ((("--rate", "5"), "--rate is for one model"), ((), "made from real inputs")):
        done = called_here("tune", "both", *words, cwd=folder, env=clean_environment())
        assert (done.returncode, why in done.stderr) == (exits.REFUSED, True), done.stderr


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The search for a goal that one item breaks, with a model whose output is random."""
    folder = project(tmp_path_factory.mktemp("pruned"))
    (folder / "paced.py").write_text(
        MODEL.replace("import time", "import random\nimport time").replace("value * 2.0", "random.random()")
    )
    space = ("--space", "batch_size=1,4", "--space", "slots=1", "--space", "threads=1,2", "--budget", "10s", "--input", "2.5")
    _remember(folder, Overheads(per_item_s=0.001))
    return tune(folder, "paced", "--slo", "p99=2ms", *space, "--resume", "state.jsonl", "--json")


def test_a_goal_that_one_item_breaks_is_reported_with_its_time(pruned: subprocess.CompletedProcess[str]) -> None:
    result = msgspec.json.decode(pruned.stdout, type=TuneResult)
    assert pruned.returncode == exits.FAILED
    assert {one.verdict for one in result.configurations} == {ConfigurationVerdict.PRUNED}
    assert all("one item alone takes" in one.why for one in result.configurations)
    assert result.spent.confirmed == 0


def test_a_model_whose_output_is_random_is_said_to_be_so_and_loses_no_configuration_for_it(
    pruned: subprocess.CompletedProcess[str],
) -> None:
    # Regression: the reference was never compared with itself, and 10 of 13 configurations were excluded for their answers,
    # which is a reason that comes before the one of time.
    result = msgspec.json.decode(pruned.stdout, type=TuneResult)
    assert len(result.measured) == 2, pruned.stderr
    assert all(one.drift is None for one in result.measured)
    assert any("output is random" in note for note in result.notes), result.notes
    assert not [one.why for one in result.configurations if "answers" in one.why]


def _remember(folder: Path, overheads: Overheads, *, book: str = "state.jsonl") -> None:
    from penstock.loadtest.bodies import read_bodies
    from penstock.settings.tables import Settings
    from penstock.tune.options import subject_of

    subject = subject_of(Settings.load(folder / "penstock.toml", {}), "paced")
    notebook = Notebook(folder / book)
    notebook.open(SearchSubject("paced", subject.table, read_bodies("2.5")).digest())
    notebook.put("overheads", "", overheads)


def test_an_input_that_the_model_refuses_ends_the_search_with_its_words(tmp_path: Path) -> None:
    done = tune(project(tmp_path), "paced", *TINY[:-1], '"no number"')
    assert done.returncode == exits.REFUSED
    assert "the model refused the input" in done.stderr
    assert "next: give real inputs" in done.stderr
    assert "Traceback" not in done.stderr
