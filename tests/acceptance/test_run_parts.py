"""Runs of many parts: several drivers, one of them killed, one frozen, and an output as if there had been one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.contract import UpdateStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.run import BY_COMMAND, Run, RunCounts, RunSpec, RunState
from penstock.runs.ownership import take_run
from penstock.runs.parts.splitting import split_input
from penstock.runs.sinks.opening import open_sink
from penstock.runs.sources.opening import open_source
from tests.acceptance.test_cli import Up, clean_environment, stopped
from tests.acceptance.test_runs import MODEL, Background, Gated, ended, expected, found, outputs, write_input
from tests.acceptance.warm_up import started
from tests.eventually import eventually
from tests.warm_process import start

SETTINGS = '[models.double]\nsource = "double.py:Double"\nmax_batch_size = 64\n'
ROWS = 4_000
# A driver as `penstock run --drivers` starts it, with a lease that does not keep a test waiting.
DRIVER = """
import sys
from penstock.runs import __main__ as program, lease, ownership

lease.LEASE_S = ownership.LEASE_S = 1.5
lease._MARGIN_S, lease.BEAT_S = 0.5, 0.2
sys.exit(program.main())
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("parts")
    (folder / "double.py").write_text(MODEL)
    (folder / "penstock.toml").write_text(SETTINGS)
    write_input(folder / "in.jsonl", ROWS, row_7={"x": "seven"}, row_3000={"x": "nine"})
    running = started(folder)
    yield running
    assert stopped(running) == 0, (running.folder / "up.log").read_text()


@contextmanager
def store_of(up: Up) -> Iterator[RunStore]:
    with closing(RedisStore(redis_url(up))) as store:
        yield RunStore(store)


def redis_url(up: Up) -> str:
    return str(json.loads((up.folder / ".penstock" / "up.json").read_text())["redis_url"])


class DriverProcess:
    """A driver of one run, in a process of its own."""

    def __init__(self, up: Up, run_id: str, number: int) -> None:
        self._log = up.folder / f"{run_id}.{number}.log"
        env = clean_environment() | {"PENSTOCK_REDIS_URL": redis_url(up), "PENSTOCK_RUNNER_RUN": run_id}
        with self._log.open("w") as out:
            words = [sys.executable, "-c", DRIVER]
            self.process = subprocess.Popen(words, cwd=up.folder, env=env, stdout=out, stderr=out)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def has(self, parts: Sequence[Run]) -> list[Run]:
        """The parts that it drives, of which it has written rows."""
        mine = f"{os.uname().nodename}:{self.process.pid}:"
        return [part for part in parts if part.driver.startswith(mine) and not part.state.final and part.counts.done]

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(20)


class Resumed(Background):
    """A `penstock run resume` in the background."""

    def __init__(self, up: Up, run_id: str) -> None:
        self.log = up.folder / f"{run_id}.resumed.log"
        with self.log.open("w") as out:
            words = ("run", "resume", run_id, "--json")
            self.process = start("penstock.cli.main", *words, cwd=up.folder, env=clean_environment(), stdout=out, stderr=out)


def test_two_drivers_of_a_command_write_what_one_would_have_written(up: Up) -> None:
    one = up.penstock("run", "double", "in.jsonl", "-o", "one.jsonl", "--carry", "x", "--json")
    two = up.penstock(
        "run", "double", "in.jsonl", "-o", "two.jsonl", "--carry", "x", "--drivers", "2", "--parts", "4", "--json"
    )
    assert (one.returncode, two.returncode) == (0, 0), two.stdout + two.stderr
    for name in ("one.jsonl", "one.jsonl.errors.jsonl"):
        assert (up.folder / name).read_bytes() == (up.folder / name.replace("one", "two")).read_bytes()
    assert not (up.folder / "two.jsonl.partial").exists()
    manifest = json.loads((up.folder / "two.jsonl.manifest.json").read_text())
    parts = manifest["parts"]
    assert [part["number"] for part in parts] == list(range(4))
    assert sum(part["rows"] for part in parts) == ROWS
    assert sum(part["bytes"] for part in parts) == manifest["output"]["bytes"]
    failed = [part["failed"] for part in parts]
    assert (sum(failed), failed[0], len({part["sha256"] for part in parts})) == (2, 1, 4)
    assert "parts" not in json.loads((up.folder / "one.jsonl.manifest.json").read_text())
    said = json.loads(two.stdout.splitlines()[-1])
    assert (said["state"], said["done"], said["failed"]) == ("completed", ROWS - 2, 2)
    shown = up.penstock("run", "show", said["run"]).stdout
    assert shown.count("completed") == 5, shown


def test_a_driver_is_killed_and_one_frozen_and_no_row_is_missing_or_twice(up: Up) -> None:
    write_input(up.folder / "long.jsonl", 4 * ROWS)
    out = up.folder / "survived.jsonl"
    spec = RunSpec(
        model="double",
        input=str(up.folder / "long.jsonl"),
        output=str(out),
        parts=6,
        metadata={BY_COMMAND: "0"},
        shard_rows=200,
    )
    with store_of(up) as runs, ExitStack() as processes:
        runs.create("parted0run", spec)
        drivers = [DriverProcess(up, "parted0run", number) for number in range(3)]
        for driver in drivers:
            processes.callback(driver.end)
        killed, frozen, left = drivers

        def all_at_work() -> bool:
            parts = runs.parts("parted0run")
            return all(driver.has(parts) for driver in drivers)

        eventually(all_at_work, timeout_s=40.0)
        frozen.process.send_signal(signal.SIGSTOP)
        [its] = frozen.has(runs.parts("parted0run"))
        killed.process.kill()

        def only_the_frozen_is_left() -> bool:
            open_parts = [part for part in runs.parts("parted0run") if not part.state.final]
            return [part.id for part in open_parts] == [its.id] and "still holds" in open_parts[0].error_message

        eventually(only_the_frozen_is_left, timeout_s=60.0)
        assert not out.exists()
        frozen.process.send_signal(signal.SIGCONT)
        eventually(lambda: found(runs, "parted0run").state is RunState.COMPLETED, timeout_s=40.0)
        assert found(runs, "parted0run").counts.done == 4 * ROWS
    assert f"another driver has taken run {its.id}" in frozen.log, frozen.log
    assert outputs(out) == expected(4 * ROWS)
    assert left.process.returncode == 0, left.log


def test_a_run_is_cancelled_and_interrupted_and_its_other_parts_stay_as_they_are(up: Up) -> None:
    rows = Gated(up, "to_stop", ROWS)
    run = Background(up, "double", rows.name, "-o", "stopped.jsonl", "--parts", "3")
    run_id = run.await_rows(ROWS // 4)
    assert "cancelled" in up.penstock("run", "cancel", run_id).stdout
    assert run.process.wait(timeout=30) == 1
    assert run.events[-1]["state"] == "cancelled"
    again = Resumed(up, run_id)
    eventually(lambda: any("parts done" in event.get("note", "") for event in again.events), timeout_s=30.0)
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(timeout=30) == 130
    rows.open()
    done = up.penstock("run", "resume", run_id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(up.folder / "stopped.jsonl") == expected(ROWS)


def test_a_driver_that_cannot_read_the_input_gives_its_part_back_and_says_so(up: Up) -> None:
    write_input(up.folder / "target.jsonl", 200)
    source, target = up.folder / "link.jsonl", up.folder / "target.jsonl"
    source.symlink_to(target)
    spec = RunSpec(model="double", input=str(source), output=str(up.folder / "read.jsonl"), parts=2, metadata={BY_COMMAND: "0"})
    with store_of(up) as runs, ExitStack() as processes:
        runs.create("unread0run", spec)
        split_here(runs, "unread0run", up.folder)
        source.unlink()
        driver = DriverProcess(up, "unread0run", 0)
        processes.callback(driver.end)

        def is_given_back() -> bool:
            return any("cannot read the input" in part.error_message for part in runs.parts("unread0run"))

        eventually(is_given_back, timeout_s=30.0)
        assert found(runs, "unread0run").state is RunState.RUNNING
        assert "cannot read the input" in up.penstock("run", "show", "unread0run").stdout
        source.symlink_to(target)
        eventually(lambda: found(runs, "unread0run").state is RunState.COMPLETED, timeout_s=40.0)
        assert {part.error_message for part in runs.parts("unread0run")} == {""}
    assert outputs(up.folder / "read.jsonl") == expected(200)


def split_here(runs: RunStore, run_id: str, folder: Path) -> None:
    """What the first driver of a run does, and no more."""
    owned = take_run(runs, run_id)
    source = open_source(owned.run.spec)
    runs.update(run_id, owned.driver, RunChange(state=RunState.RUNNING, version="1"), lease_s=10.0)
    assert runs.split(run_id, owned.driver, split_input(source, 2), RunCounts()) is UpdateStatus.OK
    open_sink(owned.run.spec, run_id, state=folder).close()
    runs.update(run_id, owned.driver, RunChange(), lease_s=0.0)


def test_too_many_failed_rows_of_all_parts_end_the_run_and_a_resume_accepts_them(up: Up) -> None:
    bad = {f"row_{row}": {"x": "bad"} for row in range(0, 3_000, 100)}
    write_input(up.folder / "bad.jsonl", 3_000, **bad)
    run = ["run", "double", "bad.jsonl", "-o", "bad-out.jsonl", "--parts", "3"]
    done = up.penstock(*run, "--max-failed", "15", "--json")
    last = json.loads(done.stdout.splitlines()[-1])
    # Each part has ten such rows: none of them alone passes the limit.
    assert (done.returncode, last["error"]["code"]) == (1, "too_many_failed"), done.stdout + done.stderr
    assert not (up.folder / "bad-out.jsonl").exists()
    done = up.penstock("run", "resume", last["run"], "--max-failed", "100%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(up.folder / "bad-out.jsonl") == expected(3_000, *range(0, 3_000, 100))


def test_a_run_of_many_parts_that_cannot_be_is_refused_with_what_to_do(up: Up) -> None:
    done = up.penstock("run", "double", "in.jsonl", "-o", "memory://out.jsonl", "--parts", "2")
    assert done.returncode == 1
    assert "path that all drivers share" in done.stdout, done.stdout
    alone = up.penstock("run", "double", "in.jsonl", "-o", "x.jsonl", "--parts", "1", "--drivers", "2")
    assert (alone.returncode != 0, "one part has one driver" in alone.stderr) == (True, True), alone.stderr
    missing = up.penstock("run", "double", "nothing.jsonl", "-o", "x.jsonl", "--parts", "2")
    assert (missing.returncode, "names no file" in missing.stdout) == (1, True), missing.stdout


def test_runs_over_http_have_parts_too(up: Up) -> None:
    with httpx2.Client(base_url=up.ready["url"], timeout=30.0) as client:
        given = {"file": ("rows.jsonl", (up.folder / "in.jsonl").read_bytes())}
        file = client.post("/v1/files", files=given, data={"purpose": "user_data"}).json()
        body: dict[str, Any] = {"model": "double", "input": file["id"], "parts": 2}
        made = client.post("/v1/runs", json=body)
        assert made.status_code == 202, made.text
        path = f"/v1/runs/{made.json()['id']}"
        run = eventually(lambda: ended(client.get(path).json()), timeout_s=40.0)
        assert run["status"] == "completed", run
        assert [part["status"] for part in run["parts"]] == ["completed"] * 2
        assert sum(part["done"] + part["failed"] for part in run["parts"]) == ROWS
        written = client.get(f"/v1/files/{run['output_file_id']}/content").text
        refused = client.post("/v1/runs", json=body | {"parts": 0})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/parts")
    assert [json.loads(line)["output"] for line in written.splitlines()] == expected(ROWS, 7, 3000)
