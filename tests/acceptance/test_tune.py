"""`penstock tune` as a user runs it: the command searches a tiny space, writes the winner and keeps all measurements."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import msgspec

from penstock.cli import exits
from penstock.tune.measuring.notebook import Notebook, SearchSubject
from penstock.tune.result import ConfigurationVerdict, Overheads, from_json
from tests.acceptance.test_cli import COMMAND, clean_environment

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
TINY = ("--space", "batch_size=1,4", "--space", "workers=1", "--space", "threads=1", "--budget", "20s", "--input", "2.5")


def tune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "tune", *arguments]
    environment = clean_environment()
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=folder, env=environment)


def project(folder: Path) -> Path:
    (folder / "paced.py").write_text(MODEL)
    (folder / "penstock.toml").write_text(SETTINGS)
    return folder


def test_a_small_space_is_searched_confirmed_and_its_winner_written(tmp_path: Path) -> None:
    folder = project(tmp_path)
    # A measurement of penstock's own cost needs a running stack; saved figures of an earlier search make it unnecessary.
    overheads = Overheads(claim_s=0.0002, feed_s=0.0002, request_s=0.004, per_item_s=0.001, per_batch_s=0.001)
    _remember(folder, overheads)
    written = ("--write", "penstock.toml", "--report", "result.json", "--resume", "state.jsonl", "--price-per-hour", "3.6")
    # Even a machine that stalls for a second meets this goal, because the search is under test and not the machine.
    done = tune(folder, "paced", "--slo", "p99=4s", "--min-rate", "50", *TINY, *written, "--json")
    result = from_json(done.stdout.encode())
    assert (folder / "result.json").read_bytes().strip() == done.stdout.strip().encode()
    winner = result.winner
    assert (done.returncode, winner is not None) == (exits.OK, True), done.stderr
    assert winner is not None
    assert winner.confirmed is not None
    assert winner.confirmed.tail_ms <= 4_000.0
    assert winner.cost_per_million == 20.0
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


def test_a_model_whose_output_is_random_is_said_to_be_so_and_loses_no_configuration_for_it(tmp_path: Path) -> None:
    # Regression: the reference was never compared with itself, and 10 of 13 configurations were excluded for their answers.
    folder = project(tmp_path)
    (folder / "paced.py").write_text(
        MODEL.replace("import time", "import random\nimport time").replace("value * 2.0", "random.random()")
    )
    _remember(folder, Overheads(claim_s=0.0002, feed_s=0.0002, request_s=0.004, per_item_s=0.001, per_batch_s=0.001))
    space = ("--space", "batch_size=1", "--space", "workers=1", "--space", "threads=1,2", "--budget", "20s", "--input", "2.5")
    done = tune(folder, "paced", "--slo", "p99=4s", "--min-rate", "5", *space, "--resume", "state.jsonl", "--json")
    result = from_json(done.stdout.encode())
    assert len(result.measured) == 2, done.stderr
    assert all(one.drift is None for one in result.measured)
    assert any("output is random" in note for note in result.notes), result.notes
    assert not [one.why for one in result.configurations if "answers" in one.why]


def _remember(folder: Path, overheads: Overheads) -> None:
    from penstock.loadtest.bodies import read_bodies
    from penstock.settings.tables import Settings
    from penstock.tune.options import subject_of

    subject = subject_of(Settings.load(folder / "penstock.toml", {}), "paced")
    book = Notebook(folder / "state.jsonl")
    book.open(SearchSubject("paced", subject.table, read_bodies("2.5")).digest())
    book.put("overheads", "", overheads)


def test_an_input_that_the_model_refuses_ends_the_search_with_its_words(tmp_path: Path) -> None:
    done = tune(project(tmp_path), "paced", *TINY[:-1], '"no number"')
    assert done.returncode == exits.REFUSED
    assert "the model refused the input" in done.stderr
    assert "next: give real inputs" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_goal_that_one_item_breaks_is_reported_with_its_time(tmp_path: Path) -> None:
    folder = project(tmp_path)
    _remember(folder, Overheads(per_item_s=0.001))
    done = tune(folder, "paced", "--slo", "p99=2ms", *TINY, "--resume", "state.jsonl", "--json")
    result = from_json(done.stdout.encode())
    assert done.returncode == exits.FAILED
    assert {one.verdict for one in result.configurations} == {ConfigurationVerdict.PRUNED}
    assert all("one item alone takes" in one.why for one in result.configurations)
    assert msgspec.json.decode(done.stdout)["spent"]["confirmed"] == 0
