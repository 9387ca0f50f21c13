"""`penstock run` against a gateway that takes keys, from a folder elsewhere: real gateway, runner, worker and store."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.access import digest_of
from tests.acceptance.test_cli import clean_environment, stopped
from tests.acceptance.test_runs import MODEL, SETTINGS, events, expected, outputs, write_input
from tests.acceptance.warm_command import run_command
from tests.acceptance.warm_up import started
from tests.eventually import eventually
from tests.warm_process import start

SECRET = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-0123456789"
KEY = f"""
[[keys]]
id = "ann"
sha256 = "{digest_of(SECRET.encode())}"
roles = ["submit", "read", "manage"]
"""
ROWS = 1_000


@dataclass(frozen=True)
class Elsewhere:
    """A folder that knows of a gateway by its address and a key alone."""

    url: str
    folder: Path
    gates: Path

    @property
    def place(self) -> tuple[str, ...]:
        return "--url", self.url, "--api-key", f"ann.{SECRET}"

    def penstock(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_command([*words, *(() if env else self.place)], folder=self.folder, env=clean_environment() | (env or {}))

    @contextmanager
    def gated(self, name: str) -> Iterator[Path]:
        """A file of rows of which the last holds the worker until the yielded file is there, or the block has ended."""
        gate = self.gates / name
        write_input(self.folder / name, ROWS, **{f"row_{ROWS - 1}": {"x": ROWS - 1, "after": str(gate)}})
        try:
            yield gate
        finally:
            gate.touch()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "double.py").write_text(MODEL)
    (folder / "penstock.toml").write_text(SETTINGS + KEY)
    up = started(folder)
    yield Elsewhere(up.ready["url"], tmp_path_factory.mktemp("elsewhere"), tmp_path_factory.mktemp("gates"))
    assert stopped(up) == 0, (folder / "up.log").read_text()


def test_a_file_is_uploaded_run_and_its_output_and_failed_rows_are_fetched(elsewhere: Elsewhere) -> None:
    write_input(elsewhere.folder / "in.jsonl", ROWS, row_7={"x": "seven"})
    done = elsewhere.penstock("run", "double", "in.jsonl", "-o", "out.jsonl", "--tag", "nightly")
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(elsewhere.folder / "out.jsonl") == expected(ROWS, 7)
    [error] = events((elsewhere.folder / "out.jsonl.errors.jsonl").read_text())
    assert (error["row"], error["code"]) == (7, "not_a_number")
    assert "completed: 999 rows done, 1 failed" in done.stdout
    assert str(elsewhere.folder / "out.jsonl.errors.jsonl") in done.stdout
    assert not list(elsewhere.folder.glob("*.partial"))


def test_events_are_those_of_a_run_in_a_store(elsewhere: Elsewhere) -> None:
    write_input(elsewhere.folder / "few.jsonl", 20)
    done = elsewhere.penstock("run", "double", "few.jsonl", "-o", "few_out.csv", "--json", "--carry", "x")
    printed = events(done.stdout)
    assert (printed[0]["event"], printed[-1]["event"], printed[-1]["state"]) == ("started", "ended", "completed")
    assert printed[-1]["files"]["output"]["path"] == str(elsewhere.folder / "few_out.csv")
    assert (elsewhere.folder / "few_out.csv").read_text().splitlines()[3] == "2,4"


def test_runs_are_listed_shown_and_cancelled_in_a_shell(elsewhere: Elsewhere) -> None:
    with elsewhere.gated("slow.jsonl"):
        run = Followed(elsewhere, "slow.jsonl", "slow_out.jsonl", "--tag", "tonight")
        run_id = run.id()
        ids = elsewhere.penstock("run", "list", "-q").stdout.split()
        assert run_id in ids
        assert [len(one) for one in ids] == [len(run_id)] * len(ids)
        assert "double" in elsewhere.penstock("run", "list", "--tag", "tonight").stdout
        shown = json.loads(elsewhere.penstock("run", "show", run_id, "--json").stdout)
        assert (shown["id"], shown["tags"]) == (run_id, ["tonight"])
        assert elsewhere.penstock("run", "show", run_id).stdout.split()[:2] == ["run", run_id]
        # As `penstock run list --tag tonight -q | xargs penstock run cancel`.
        chosen = elsewhere.penstock("run", "list", "--tag", "tonight", "-q").stdout.split()
        cancelled = elsewhere.penstock("run", "cancel", *chosen)
        assert cancelled.stdout.startswith(f"run {run_id}: cancel"), cancelled.stderr
    # The row that runs is awaited. It is the last one, so the run is complete if it ends before the runner hears of the cancel.
    code, end = run.process.wait(timeout=60), run.events()[-1]
    assert (code, end["state"]) in ((1, "cancelled"), (0, "completed"))
    if end["state"] == "cancelled":
        assert end["files"] == {}
        assert not (elsewhere.folder / "slow_out.jsonl").exists()
        refused = elsewhere.penstock("run", "resume", run_id, "-o", "again.jsonl")
        assert refused.returncode == 5
        assert f"run {run_id} has ended: it is cancelled" in refused.stderr


def test_a_command_that_was_interrupted_leaves_the_run_and_says_how_to_fetch_its_output(elsewhere: Elsewhere) -> None:
    with elsewhere.gated("gated.jsonl"):
        run = Followed(elsewhere, "gated.jsonl", "late.jsonl")
        run_id = run.id()
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=30) == 130
    done = elsewhere.penstock("run", "resume", run_id, "-o", "late.jsonl", "-q")
    assert (done.returncode, done.stdout) == (0, f"{run_id}\n"), done.stderr
    assert outputs(elsewhere.folder / "late.jsonl") == expected(ROWS)


def test_too_many_failed_rows_end_the_run_and_the_next_step_that_is_printed_works(elsewhere: Elsewhere) -> None:
    write_input(elsewhere.folder / "bad.jsonl", 4, row_1={"x": "one"}, row_2={"x": "two"})
    done = elsewhere.penstock("run", "double", "bad.jsonl", "-o", "bad_out.jsonl", "--max-failed", "1")
    assert done.returncode == 1
    assert "too_many_failed" in done.stdout
    step = done.stdout.partition("accept the failed rows: penstock ")[2].strip()
    again = run_command([*shlex.split(step), "--api-key", f"ann.{SECRET}"], folder=elsewhere.folder, env=clean_environment())
    assert again.returncode == 0, again.stdout + again.stderr
    assert outputs(elsewhere.folder / "bad_out.jsonl") == expected(4, 1, 2)


def test_failed_rows_are_run_again_at_the_gateway_and_the_fetched_output_is_replaced(elsewhere: Elsewhere) -> None:
    needed, output = elsewhere.gates / "needed", elsewhere.folder / "early_out.jsonl"
    write_input(
        elsewhere.folder / "early.jsonl", 300, row_7={"x": 7, "needs": str(needed)}, row_8={"x": 8, "needs": str(needed)}
    )
    run_id = elsewhere.penstock("run", "double", "early.jsonl", "-o", "early_out.jsonl").stdout.split()[1]
    errors = elsewhere.folder / "early_out.jsonl.errors.jsonl"
    assert (outputs(output), errors.exists()) == (expected(300, 7, 8), True)
    needed.touch()
    again = elsewhere.penstock("run", "resume", run_id, "--failed", "-o", "early_out.jsonl")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "300 rows done, 0 failed" in again.stdout
    assert (outputs(output), errors.exists()) == (expected(300), False)
    refused = elsewhere.penstock("run", "resume", again.stdout.split()[1], "--failed", "-o", "early_out.jsonl")
    assert (refused.returncode, "no row of run" in refused.stderr) == (5, True)


def test_without_a_store_here_the_gateway_of_the_environment_has_the_runs(elsewhere: Elsewhere) -> None:
    env = {"PENSTOCK_URL": elsewhere.url, "PENSTOCK_API_KEY": f"ann.{SECRET}"}
    write_input(elsewhere.folder / "env.jsonl", 3)
    done = elsewhere.penstock("run", "double", "env.jsonl", "-o", "env_out.jsonl", "-q", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in elsewhere.penstock("run", "list", "-q", env=env).stdout.split()
    assert not (elsewhere.folder / ".penstock").exists()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["double", ".", "-o", "x.jsonl"], 5, "is a folder, and a gateway's run has one file as its input"),
        (["double", "none.jsonl", "-o", "x.jsonl"], 5, "is no file here"),
        (["double", "small.jsonl", "-o", "x.unknown"], 5, "give --output-format"),
        (["double", "small.jsonl", "-o", "small.jsonl"], 5, "exists already"),
        (["double", "small.jsonl", "-o", "none/x.jsonl"], 5, "mkdir -p"),
        (["double", "small.jsonl", "-o", "s3://bucket/x.jsonl"], 5, "name a file, and copy it to its place"),
        (["duoble", "small.jsonl", "-o", "x.jsonl"], 5, "double"),
        (["double", "small.jsonl", "-o", "x.jsonl", "--drivers", "2"], 2, "--drivers is for runs that this command drives"),
        (["double", "small.jsonl", "-o", "x.jsonl", "--state-dir", "here"], 2, "--state-dir is for runs"),
        (["show", "nothing"], 5, "there is no run"),
        (["resume", "nothing"], 5, "say where: -o OUTPUT"),
        (["resume", "nothing", "--failed"], 5, "say where: -o OUTPUT"),
        (["resume", "nothing", "--failed", "-o", "x.jsonl"], 5, "there is no run"),
    ],
)
def test_what_a_gateway_cannot_do_is_refused_with_what_to_do(
    elsewhere: Elsewhere, words: list[str], code: int, why: str
) -> None:
    write_input(elsewhere.folder / "small.jsonl", 3)
    done = elsewhere.penstock("run", *words)
    assert done.returncode == code, done.stdout + done.stderr
    assert why in " ".join(done.stderr.replace("│", " ").split()), done.stderr


def test_a_gateway_that_does_not_answer_is_named(tmp_path: Path) -> None:
    write_input(tmp_path / "in.jsonl", 3)
    place = ["--url", "http://127.0.0.1:9"]
    for words in (["list"], ["double", "in.jsonl", "-o", "out.jsonl"]):
        done = run_command(["run", *words, *place], folder=tmp_path, env=clean_environment())
        assert done.returncode == 3, done.stderr
        assert "cannot reach http://127.0.0.1:9" in done.stderr


class Followed:
    """A `penstock run` at a gateway, in the background."""

    def __init__(self, elsewhere: Elsewhere, source: str, output: str, *options: str) -> None:
        self._log = elsewhere.folder / f"{output}.log"
        words = ("run", "double", source, "-o", output, "--json", *options, *elsewhere.place)
        with self._log.open("w") as out:
            self.process = start(
                "penstock.cli.main", *words, cwd=elsewhere.folder, env=clean_environment(), stdout=out, stderr=out
            )

    def events(self) -> list[dict[str, Any]]:
        return events("\n".join(line for line in self._log.read_text().splitlines() if line.endswith("}")))

    def id(self) -> str:
        """The id of the run, once some of its rows are done."""
        eventually(lambda: any(event.get("done", 0) > 0 for event in self.events()), timeout_s=40.0)
        return str(self.events()[0]["run"])
