"""Runs over files, as a user starts, watches, kills and resumes them, with real processes, a real store and a real model."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.run import Run, RunSpec, RunState
from tests.acceptance.test_cli import Up, clean_environment, stopped
from tests.acceptance.warm_command import run_command
from tests.acceptance.warm_up import started
from tests.eventually import eventually
from tests.warm_process import start

# A row takes 0.2 ms. A row may also kill its process, fail until a file exists, or wait until a file exists, so that a test
# can stop a run halfway.
MODEL = """
import os
import time

from penstock import Failure, Handler, Request


class Double(Handler):
    def inference(self, batch: list) -> list:
        time.sleep(0.0002 * len(batch))
        return [self.one(item) for item in batch]

    def one(self, item: object) -> object:
        if item.get("die"):
            os._exit(9)
        while not os.path.exists(item.get("after", ".")):
            time.sleep(0.005)
        if not os.path.exists(item.get("needs", ".")):
            return Failure("not yet", code="not_yet")
        if not isinstance(item["x"], int):
            return Failure("x must be a whole number", code="not_a_number")
        return {"y": 2 * item["x"]}


class Told(Handler):
    def inference(self, batch: list[Request]) -> list:
        return [[item.input["x"], dict(item.headers), dict(item.query)] for item in batch]
"""
SETTINGS = """
[models.double]
source = "double.py:Double"
max_batch_size = 64

[models.told]
source = "double.py:Told"
request_headers = ["X-Tenant"]
query = ["language"]
"""
ROWS = 2_000
ENDPOINT = "/v1/models/double/jobs"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "double.py").write_text(MODEL)
    (folder / "penstock.toml").write_text(SETTINGS)
    write_input(folder / "in.jsonl", ROWS)
    running = started(folder)
    yield running
    assert stopped(running) == 0, (running.folder / "up.log").read_text()


def write_input(path: Path, rows: int, **others: Any) -> None:
    """Writes a file of rows `{"x": number}`; an argument such as `row_7=...` replaces the row of that number."""
    lines = (json.dumps(others.get(f"row_{row}", {"x": row})) for row in range(rows))
    path.write_text("".join(f"{line}\n" for line in lines))


class Gated:
    """An input file whose last row does not finish until `open` is called."""

    def __init__(self, up: Up, name: str, rows: int = ROWS) -> None:
        self.name = f"{name}.jsonl"
        self._gate = up.folder / f"{name}.open"
        last = rows - 1
        write_input(up.folder / self.name, rows, **{f"row_{last}": {"x": last, "after": str(self._gate)}})

    def open(self) -> None:
        self._gate.touch()


def expected(rows: int, *failed: int) -> list[Any]:
    return [None if row in failed else {"y": 2 * row} for row in range(rows)]


def outputs(path: Path) -> list[Any]:
    return [json.loads(line)["output"] for line in path.read_text().splitlines()]


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class Background:
    """A `penstock run` in the background, and the events that the command has printed."""

    def __init__(self, up: Up, *arguments: str) -> None:
        self.log = up.folder / f"{arguments[arguments.index('-o') + 1]}.log"
        with self.log.open("w") as out:
            words = ("run", *arguments, "--json")
            self.process = start("penstock.cli.main", *words, cwd=up.folder, env=clean_environment(), stdout=out, stderr=out)

    @property
    def events(self) -> list[dict[str, Any]]:
        return events("\n".join(line for line in self.log.read_text().splitlines() if line.endswith("}")))

    def await_rows(self, rows: int) -> str:
        """Waits until this number of rows has been written, and returns the id of the run."""
        eventually(lambda: any(event.get("done", 0) >= rows for event in self.events), timeout_s=30.0)
        return str(self.events[0]["run"])


def test_every_row_has_its_output_in_order_and_a_manifest_says_what_was_done(up: Up) -> None:
    done = up.penstock("run", "double", "in.jsonl", "-o", "whole.jsonl", "--carry", "x", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = events(done.stdout)
    assert (printed[0]["event"], printed[-1]["event"], printed[-1]["state"]) == ("started", "ended", "completed")
    assert (printed[-1]["done"], printed[-1]["failed"]) == (ROWS, 0)
    assert outputs(up.folder / "whole.jsonl") == expected(ROWS)
    assert json.loads((up.folder / "whole.jsonl").read_text().splitlines()[7]) == {"x": 7, "output": {"y": 14}}
    manifest = json.loads((up.folder / "whole.jsonl.manifest.json").read_text())
    assert (manifest["version"], manifest["counts"]["done"], manifest["output"]["rows"]) == ("1", ROWS, ROWS)
    assert not (up.folder / "whole.jsonl.partial").exists()


def test_rows_that_fail_have_their_reason_in_the_errors_file_and_stop_nobody(up: Up) -> None:
    write_input(up.folder / "bad.jsonl", 300, row_7={"x": "seven"}, row_100={"x": 1, "die": True})
    done = up.penstock("run", "double", "bad.jsonl", "-o", "bad_out.jsonl", "--shard-rows", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "298 rows done, 2 failed" in done.stdout
    assert outputs(up.folder / "bad_out.jsonl") == expected(300, 7, 100)
    errors = events((up.folder / "bad_out.jsonl.errors.jsonl").read_text())
    assert [(error["row"], error["line"], error["code"]) for error in errors] == [(7, 8, "not_a_number"), (100, 101, "poison")]


def test_too_many_failed_rows_stop_the_run_and_a_resume_with_patience_completes_it(up: Up) -> None:
    bad = {f"row_{row}": {"x": "no"} for row in range(0, 300, 3)}
    write_input(up.folder / "worse.jsonl", 300, **bad)
    done = up.penstock("run", "double", "worse.jsonl", "-o", "worse_out.jsonl", "--max-failed", "5", "--shard-rows", "20")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "too_many_failed" in done.stdout
    assert not (up.folder / "worse_out.jsonl").exists()
    run_id = done.stdout.split()[1]
    done = up.penstock("run", "resume", run_id, "--max-failed", "1000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(up.folder / "worse_out.jsonl") == expected(300, *range(0, 300, 3))


def test_a_run_of_which_too_many_rows_fail_is_no_success_for_a_script(up: Up) -> None:
    # Regression: a run with every row failed was `completed`, with exit code 0.
    write_input(up.folder / "all_bad.jsonl", 20, **{f"row_{row}": {"x": "no"} for row in range(20)})
    done = up.penstock("run", "double", "all_bad.jsonl", "-o", "all_bad_out.jsonl")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no row has an output" in done.stdout
    write_input(up.folder / "fifth_bad.jsonl", 300, **{f"row_{row}": {"x": "no"} for row in range(0, 300, 5)})
    done = up.penstock("run", "double", "fifth_bad.jsonl", "-o", "fifth_bad_out.jsonl")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "60 of 300 rows failed, and the limit is 10% of the rows; the first was row 0: not_a_number" in done.stdout
    assert not (up.folder / "fifth_bad_out.jsonl").exists()
    done = alone(up.folder, *shlex.split(done.stdout.rpartition("penstock ")[2]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(up.folder / "fifth_bad_out.jsonl") == expected(300, *range(0, 300, 5))


def test_a_killed_driver_leaves_a_run_that_is_resumed_without_a_row_missing_or_twice(up: Up) -> None:
    # So many that the resumed run takes seconds: progress is told once a second.
    count = 5 * ROWS
    rows = Gated(up, "to_kill", count)
    run = Background(up, "double", rows.name, "-o", "killed.jsonl")
    run_id = run.await_rows(1)
    run.process.kill()
    run.process.wait()
    rows.open()
    assert not (up.folder / "killed.jsonl").exists()
    assert json.loads(up.penstock("run", "show", run_id, "--json").stdout)["state"] == "interrupted"
    done = up.penstock("run", "resume", run_id, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    progress = [event for event in events(done.stdout) if event["event"] == "progress"]
    assert max(event["rows_per_s"] for event in progress) > 0
    assert outputs(up.folder / "killed.jsonl") == expected(count)
    assert up.penstock("run", "resume", run_id).returncode != 0, "there is nothing left to do"


def test_ctrl_c_leaves_the_run_to_be_resumed_and_says_how(up: Up) -> None:
    # The last row is gated, because in one CI run all rows ended before the signal came.
    rows = Gated(up, "to_leave")
    run = Background(up, "double", rows.name, "-o", "left.jsonl")
    run_id = run.await_rows(1)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(timeout=20) == 130
    assert run.events[-1]["state"] == "interrupted"
    rows.open()
    assert up.penstock("run", "resume", run_id).returncode == 0
    assert outputs(up.folder / "left.jsonl") == expected(ROWS)


def test_a_changed_input_is_not_resumed_unless_told_to(up: Up) -> None:
    rows = Gated(up, "moving")
    run = Background(up, "double", rows.name, "-o", "moved.jsonl")
    run_id = run.await_rows(1)
    run.process.kill()
    run.process.wait()
    rows.open()
    os.utime(up.folder / rows.name, (1.0, 1.0))
    refused = up.penstock("run", "resume", run_id)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "changed since the run started" in refused.stdout
    assert up.penstock("run", "resume", run_id, "--accept-changes").returncode == 0
    assert outputs(up.folder / "moved.jsonl") == expected(ROWS)


def test_a_run_is_cancelled_from_another_terminal_and_listed(up: Up) -> None:
    rows = Gated(up, "to_cancel")
    run = Background(up, "double", rows.name, "-o", "cancelled.jsonl", "--tag", "nightly")
    run_id = run.await_rows(1)
    assert up.penstock("run", "cancel", "--tag", "weekly").returncode == 0
    assert up.penstock("run", "cancel", run_id, "--tag", "nightly").returncode == 2
    assert up.penstock("run", "cancel", "--tag", "a b").returncode == 5
    # A shard that were cancelled as a job of the tag would be rows that fail.
    assert up.penstock("jobs", "cancel", "--tag", "nightly").stdout == "0 jobs cancelled, 0 running: cancel requested\n"
    listed = [json.loads(line)["id"] for line in up.penstock("run", "list", "--tag", "nightly", "--json").stdout.splitlines()]
    assert listed == [run_id]
    assert up.penstock("run", "cancel", "--tag", "nightly").returncode == 0
    assert run.process.wait(timeout=20) == 1
    rows.open()
    assert run.events[-1]["state"] == "cancelled"
    table = up.penstock("run", "list").stdout
    assert any(run_id in line and "cancelled" in line for line in table.splitlines()), table
    shown = up.penstock("run", "show", run_id).stdout
    assert "cancelled.jsonl" in shown


def test_failed_rows_are_run_again_and_the_output_is_published_anew_in_order(up: Up) -> None:
    needed = up.folder / "needed"
    row = {"x": 7, "needs": str(needed)}
    write_input(up.folder / "early.jsonl", 300, row_7=row, row_8={"x": "never"})
    done = up.penstock("run", "double", "early.jsonl", "-o", "early_out.jsonl")
    run_id = done.stdout.split()[1]
    assert outputs(up.folder / "early_out.jsonl") == expected(300, 7, 8)
    needed.touch()
    again = up.penstock("run", "resume", run_id, "--failed")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "299 rows done, 1 failed" in again.stdout
    assert outputs(up.folder / "early_out.jsonl") == expected(300, 8)
    assert [error["row"] for error in events((up.folder / "early_out.jsonl.errors.jsonl").read_text())] == [8]


def test_the_failed_rows_of_a_table_are_not_run_again_and_the_command_says_why(up: Up) -> None:
    write_input(up.folder / "tabled.jsonl", 3, row_1={"x": "never"})
    run_id = up.penstock("run", "double", "tabled.jsonl", "-o", "tabled.csv").stdout.split()[1]
    before = (up.folder / "tabled.csv").read_text()
    refused = up.penstock("run", "resume", run_id, "--failed")
    assert refused.returncode != 0
    assert "is a table of texts, which do not say whether they were numbers" in refused.stderr
    assert "run all rows again, with --overwrite" in refused.stderr
    assert (up.folder / "tabled.csv").read_text() == before


def test_a_run_made_by_another_face_is_driven_by_the_runner_of_penstock_up(up: Up) -> None:
    stack = json.loads((up.folder / ".penstock" / "up.json").read_text())
    spec = RunSpec(model="double", input=str(up.folder / "in.jsonl"), output=str(up.folder / "driven.jsonl"))
    with closing(RedisStore(stack["redis_url"])) as store:
        runs = RunStore(store)
        runs.create("made0elsewhere", spec)
        eventually(lambda: found(runs, "made0elsewhere").state is RunState.COMPLETED, timeout_s=30.0)
        run = found(runs, "made0elsewhere")
    assert (run.counts.done, run.version, run.details["output"]["rows"]) == (ROWS, "1", ROWS)
    assert run.busy is not None
    assert outputs(up.folder / "driven.jsonl") == expected(ROWS)


def test_a_batch_and_a_run_made_over_http_are_driven_to_their_files(up: Up) -> None:
    lines = "".join(
        json.dumps({"custom_id": f"c{row}", "method": "POST", "url": ENDPOINT, "body": {"x": row}}) + "\n" for row in range(5)
    )
    with httpx2.Client(base_url=up.ready["url"], timeout=30.0) as client:
        given = {"file": ("b.jsonl", lines.encode())}
        file = client.post("/v1/files", files=given, data={"purpose": "batch"}).json()
        request = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        made = client.post("/v1/batches", json=request)
        assert made.status_code < 300, made.text
        path = f"/v1/batches/{made.json()['id']}"
        batch = eventually(lambda: ended(client.get(path).json()), timeout_s=30.0)
        assert batch["status"] == "completed", batch
        content = client.get(f"/v1/files/{batch['output_file_id']}/content").text
        rows = "".join(json.dumps({"x": row}) + "\n" for row in range(50)).encode()
        file = client.post("/v1/files", files={"file": ("rows.jsonl", rows)}, data={"purpose": "user_data"}).json()
        made = client.post("/v1/runs", json={"model": "double", "input": file["id"], "input_format": "jsonl"})
        assert made.status_code < 300, made.text
        path = f"/v1/runs/{made.json()['id']}"
        run = eventually(lambda: ended(client.get(path).json()), timeout_s=30.0)
        assert run["status"] == "completed", run
        written = client.get(f"/v1/files/{run['output_file_id']}/content").text
    assert [line["output"] for line in events(written)] == expected(50)
    answers = {line["custom_id"]: line["response"]["body"] for line in events(content)}
    assert answers == {f"c{row}": {"y": 2 * row} for row in range(5)}


def ended(batch: dict[str, Any]) -> dict[str, Any] | None:
    return batch if batch["status"] in ("completed", "failed", "expired", "cancelled") else None


def found(runs: RunStore, run_id: str) -> Run:
    run = runs.read(run_id)
    assert run is not None
    return run


def test_all_rows_are_told_the_headers_and_parameters_of_the_command(up: Up) -> None:
    write_input(up.folder / "said.jsonl", 3)
    said = ("--header", "X-Tenant: blue", "--query", "language=de=at")
    done = up.penstock("run", "told", "said.jsonl", "-o", "said_out.jsonl", *said)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(up.folder / "said_out.jsonl") == [[row, {"x-tenant": "blue"}, {"language": "de=at"}] for row in range(3)]


def test_headers_and_parameters_that_the_model_does_not_take_end_the_run_and_say_which_it_takes(up: Up) -> None:
    done = up.penstock("run", "told", "in.jsonl", "-o", "wrong_out.jsonl", "--query", "lang=de", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    error = events(done.stdout)[-1]["error"]
    assert (
        error["message"]
        == "the run cannot have these query parameters: 'lang', the model's settings name no such query parameter"
    )
    assert "The model takes language" in error["hint"]
    refused = up.penstock("run", "double", "in.jsonl", "-o", "wrong_out.jsonl", "--header", "X-Tenant")
    assert refused.returncode == 5, refused.stdout + refused.stderr
    assert "--header 'X-Tenant' is not NAME:VALUE" in refused.stderr


def test_a_model_that_nobody_serves_is_said_so_at_once(up: Up) -> None:
    done = up.penstock("run", "nothing", "in.jsonl", "-o", "nothing.jsonl")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no model 'nothing' is served" in done.stdout


def test_a_run_whose_output_exists_advises_overwrite_and_no_resume_that_would_fail_the_same_way(up: Up) -> None:
    write_input(up.folder / "few.jsonl", 5)
    (up.folder / "there.jsonl").write_text("mine\n")
    arguments = ("run", "double", "few.jsonl", "-o", "there.jsonl")
    done = up.penstock(*arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    [advice] = [line for line in done.stdout.splitlines() if line.startswith("  next: ")]
    assert "--overwrite" in advice
    assert "resume" not in done.stdout
    assert "--overwrite" in events(up.penstock(*arguments, "--json").stdout)[-1]["error"]["hint"]
    assert up.penstock(*arguments, "--overwrite").returncode == 0
    assert outputs(up.folder / "there.jsonl") == expected(5)


def test_with_models_of_its_own_on_a_running_store_a_misspelt_model_ends_the_run_at_once(up: Up) -> None:
    done = up.penstock("run", "duoble", "in.jsonl", "-o", "duoble.jsonl", "--models", "other=double.py:Double")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no model 'duoble' is served; did you mean double?" in done.stdout


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(arguments, folder=folder, env=clean_environment())
