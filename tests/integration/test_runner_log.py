from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.run import RunSpec
from tests.eventually import eventually


def log_lines(log: Path) -> dict[str, dict[str, Any]]:
    """Return the lines so far, by their event; a line that is not JSON fails the test."""
    return {line["event"]: line for line in map(json.loads, log.read_text().splitlines())}


def test_a_runners_log_names_the_run_in_every_event(fresh_redis: str, tmp_path: Path) -> None:
    """The lines of a runner once were events without facts: `INFO penstock.bulk run_taken`, whichever run was taken."""
    (tmp_path / "in.jsonl").write_text('{"x": 1}\n')
    with closing(RedisStore(fresh_redis)) as store:
        spec = RunSpec(model="square", input=str(tmp_path / "in.jsonl"), output=str(tmp_path / "in.jsonl"))
        RunStore(store).create("r1", spec)
    env = {**os.environ, "PENSTOCK_REDIS_URL": fresh_redis, "PENSTOCK_STORE__STATE_DIR": str(tmp_path / "state")}
    log = tmp_path / "runner.log"
    with log.open("wb") as stdout, subprocess.Popen([sys.executable, "-m", "penstock.runs"], env=env, stdout=stdout) as runner:
        try:
            eventually(lambda: "run_left" in log_lines(log), timeout_s=60.0)
        finally:
            runner.terminate()
    lines = log_lines(log)
    taken = {name: lines["run_taken"][name] for name in ("level", "logger", "run", "model")}
    assert taken == {"level": "info", "logger": "penstock.runs", "run": "r1", "model": "square"}
    assert (lines["run_left"]["run"], lines["run_left"]["state"]) == ("r1", "failed")
    assert runner.returncode == 0


def test_a_run_that_meets_an_error_of_ours_fails_at_once_and_the_others_go_on(fresh_redis: str, tmp_path: Path) -> None:
    """A batch with a byte that is not UTF-8 stayed `validating`, and the runner broke on it again every 15 seconds."""
    with closing(RedisStore(fresh_redis)) as store:
        runs = RunStore(store)
        # No file can have this name; nobody expects the error that Python raises for it.
        odd = RunSpec(model="square", kind="openai", input=str(tmp_path / "in\0.jsonl"), output=str(tmp_path / "out.jsonl"))
        runs.create("odd", odd)
        runs.create("next", RunSpec(model="square", input=str(tmp_path / "none.jsonl"), output=str(tmp_path / "out.jsonl")))
        env = {**os.environ, "PENSTOCK_REDIS_URL": fresh_redis, "PENSTOCK_STORE__STATE_DIR": str(tmp_path / "state")}
        with subprocess.Popen([sys.executable, "-m", "penstock.runs"], env=env, stdout=subprocess.DEVNULL) as runner:
            try:
                eventually(lambda: all(run.state.final for run in runs.page().runs), timeout_s=60.0)
            finally:
                runner.terminate()
        ends = {run.id: (run.state.value, run.error_code) for run in runs.page().runs}
        assert ends == {"odd": ("failed", "internal"), "next": ("failed", "not_found")}
        failed = runs.read("odd")
        assert failed is not None
        assert failed.error_message == "ValueError: embedded null byte; this is a bug"
