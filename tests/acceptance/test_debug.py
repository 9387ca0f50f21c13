"""`penstock debug`: a model's code on one batch, in one process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.warm_command import run_command

ROOT = Path(__file__).resolve().parents[2]
SQUARE = str(ROOT / "examples" / "square.py")
SECRETIVE = ROOT / "tests" / "handlers" / "secretive.py"
BROKEN = """
import penstock

class Broken(penstock.Handler):
    def preprocess(self, inputs: list) -> list:
        return [penstock.Failure("no number", code="bad_number") if item < 0 else item for item in inputs]

    def inference(self, batch: list[float]) -> list:
        divisor = 0 if 13.0 in batch else 2
        return [item / divisor for item in batch][: 1 if 7.0 in batch else None]
"""


@pytest.fixture
def broken(tmp_path: Path) -> str:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    return str(file)


def debug(*words: str, folder: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return run_command(["debug", *words], folder=folder, env=env, stdin=stdin)


def test_the_outputs_are_printed_in_the_order_of_the_inputs_and_the_stages_with_their_times(tmp_path: Path) -> None:
    done = debug(SQUARE, "-i", '{"x": 4}', "-i", '{"x": 5}', folder=tmp_path)
    assert (done.returncode, [json.loads(line) for line in done.stdout.splitlines()]) == (0, [{"y": 16.0}, {"y": 25.0}])
    assert "loaded in" in done.stderr
    assert "inference: 2 items in" in done.stderr


def test_an_input_may_be_a_file_and_a_json_line_says_what_a_program_needs(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"x": 3}')
    done = debug(SQUARE, "-i", "@one.json", "--json", folder=tmp_path)
    assert json.loads(done.stdout) == {"content_type": "application/json", "output": {"y": 9.0}}


def test_an_item_that_fails_is_named_and_its_neighbours_go_on(broken: str, tmp_path: Path) -> None:
    done = debug(broken, "-i", "-1", "-i", "8", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "4.0\n")
    assert "bad_number: no number" in done.stderr


def test_an_error_comes_with_its_whole_traceback(broken: str, tmp_path: Path) -> None:
    """A worker's logs and answers show no traceback: this is where the developer sees it."""
    done = debug(broken, "-i", "13", folder=tmp_path)
    assert done.returncode == 1
    assert f'File "{broken}", line 10, in <listcomp>' in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_the_debugger_opens_where_the_code_raised(broken: str, tmp_path: Path) -> None:
    done = debug(broken, "-i", "13", "--pdb", folder=tmp_path, stdin="print('divisor is', divisor)\nquit\n")
    assert "divisor is 0" in done.stdout
    assert done.returncode == 1


def test_a_stage_that_breaks_the_contract_is_told_so(broken: str, tmp_path: Path) -> None:
    done = debug(broken, "-i", "7", "-i", "9", folder=tmp_path)
    assert done.returncode == 1
    assert "inference got 2 items and returned 1" in done.stderr


def test_a_model_of_the_settings_has_its_variables_and_secrets(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        f"[models.told]\nsource = '{SECRETIVE}'\n[models.told.env]\nSERVICE_URL = 'here'\n"
        "[models.told.secrets]\nSERVICE_KEY = {file = 'key'}\n"
    )
    (tmp_path / "key").write_text("hunter2-hunter2\n")
    done = debug("told", "-i", '"SERVICE_KEY"', folder=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, '"hunter2-hunter2"')


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([SQUARE], 2, "give an input"),
        ([SQUARE, "-i", "{x"], 2, "INPUT is not JSON"),
        ([SQUARE, "-i", '{"x": "one"}'], 5, "x"),
        (["nothing.py", "-i", "1"], 4, "nothing.py"),
        ([SQUARE, "--version", "9", "-i", "1"], 2, "no version '9'"),
        ([SQUARE, "-F", "x=4", "-i", "1"], 2, "leave out --input"),
        ([SQUARE, "-F", "x"], 2, "NAME=TEXT or NAME=@FILE"),
        ([SQUARE, "-F", "x=4", "-F", "colour=red"], 5, "'colour': the model has no such field"),
    ],
)
def test_what_cannot_run_says_why(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = debug(*words, folder=tmp_path)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_form_is_read_as_a_worker_reads_it(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    given = ROOT / "tests" / "handlers" / "given.py"
    done = debug(f"{given}:ordered", "-F", "image=@cat.png", "-F", "threshold=0.3", "-F", "title=7", folder=tmp_path)
    assert json.loads(done.stdout) == {
        "image": [4, "image/png", "cat.png"],
        "threshold": 0.3,
        "title": "7",
        "more": [],
    }, done.stderr
    asked = debug(f"{given}:asked", "-F", "data=5", folder=tmp_path)
    assert json.loads(asked.stdout)["input"] == 5, asked.stderr


FUNCTION = """
import os, penstock

@penstock.model
def ratio(x: int) -> float:
    return int(os.environ["RATIO"]) / x if x == 7 else 1 / x
"""


def test_a_function_of_one_item_shows_its_traceback_and_opens_the_debugger_where_it_raised(tmp_path: Path) -> None:
    # Regression: it printed the class of the error and nothing else, and --pdb opened nothing.
    (tmp_path / "ratio.py").write_text(FUNCTION)
    done = debug("ratio.py", "-i", "2", "-i", "0", "-i", "7", "--pdb", folder=tmp_path, stdin="p x + 40\nq\n")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "0.5")
    assert f'File "{tmp_path}/ratio.py", line 6, in ratio' in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "RATIO is not set; write RATIO = " in done.stderr
    assert "(Pdb) 40" in done.stdout
