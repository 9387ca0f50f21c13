"""Runs, webhooks and pipelines over two stores: neither a worker that is killed nor a move costs any of their jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.extensions.webhooks.webhook import new_signing_key
from tests.acceptance.test_cli import clean_environment
from tests.acceptance.two_stores import TwoStores, two_stores
from tests.command import called_here
from tests.eventually import eventually
from tests.extensions.pipelines.integration.pipeline_stack import notes
from tests.webhook_receiver import Receiver, receiver

ROWS = 60


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def stack(has_server: None, hooks: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoStores]:
    env = {"PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(), "PENSTOCK_WEBHOOKS__URLS": hooks.url}
    with two_stores(tmp_path_factory.mktemp("killed"), env) as made:
        yield made


class Held:
    """Inputs whose models note that they run, and wait for a gate that the test opens."""

    def __init__(self, folder: Path) -> None:
        self._gate, self.notes = folder / "gate", folder / "notes"

    def value(self, number: int, **more: Any) -> dict[str, Any]:
        return {"n": number, "tag": str(number), "until": str(self._gate), "notes": str(self.notes), **more}

    def await_begun(self, *models: str) -> None:
        eventually(lambda: {line.split()[0] for line in notes(self.notes)} >= set(models))

    def kill_and_go_on(self, stack: TwoStores) -> None:
        stack.worker.kill()
        stack.worker.start()
        self._gate.touch()


def test_runs_over_models_of_both_stores_write_every_row_once(stack: TwoStores, tmp_path: Path) -> None:
    held = Held(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(held.value(row)) + "\n" for row in range(ROWS)))
    own = {"PENSTOCK_REDIS_URL": stack.main.url, "PENSTOCK_STORE__STATE_DIR": str(tmp_path), "PENSTOCK_PIPELINES": "{}"}
    own["PENSTOCK_STORE__BLOB_DIR"] = str(stack.folder / "worker" / "state" / "blobs")
    command = [sys.executable, "-m", "penstock.cli.main", "run"]
    runs = {
        model: subprocess.Popen(
            [*command, model, "in.jsonl", "-o", f"{model}.jsonl", "--json"],
            cwd=tmp_path,
            env=clean_environment()
            | stack.env
            | own
            | {"PENSTOCK_STORE__BLOB_DIR": str(stack.folder / "worker" / "state" / "blobs")},
            stdout=subprocess.DEVNULL,
        )
        for model in ("near", "far")
    }
    held.await_begun("near", "far")
    held.kill_and_go_on(stack)
    for model, run in runs.items():
        assert run.wait(timeout=90.0) == 0
        rows = [json.loads(line) for line in (tmp_path / f"{model}.jsonl").read_text().splitlines()]
        assert [(row["output"]["n"], row["output"]["trail"]) for row in rows] == [(n + 1, [model]) for n in range(ROWS)]


def test_events_of_jobs_in_both_stores_arrive(stack: TwoStores, hooks: Receiver, tmp_path: Path) -> None:
    held = Held(tmp_path)
    jobs = {
        stack.submit(model, held.value(number), webhook=f"{hooks.url}{model}")
        for model in ("near", "far")
        for number in range(4)
    }
    held.await_begun("near", "far")
    held.kill_and_go_on(stack)
    eventually(lambda: {one.event["data"]["id"] for one in list(hooks.requests)} == jobs, timeout_s=60.0)
    assert {one.event["type"] for one in hooks.requests} == {"job.succeeded"}
    assert len({one.id for one in hooks.requests}) == len(jobs), "a job has one event"


def test_pipelines_across_both_stores_end_and_no_finished_stage_runs_again(stack: TwoStores, tmp_path: Path) -> None:
    held = Held(tmp_path)
    jobs = [stack.submit("across", held.value(number, hold="far")) for number in range(4)]
    # The first stage of each has ended once its second one is there.
    eventually(lambda: (far := stack.client.get("/v1/queues/far").json())["depth"] + far["in_flight"] == len(jobs))
    held.await_begun("far")
    held.kill_and_go_on(stack)
    outputs = [stack.output(job, timeout_s=60.0) for job in jobs]
    assert [(one["n"], one["trail"]) for one in outputs] == [(number + 2, ["near", "far"]) for number in range(4)]
    assert {line: count for line, count in notes(held.notes).items() if line.startswith("near")} == {
        f"near {number}": 1 for number in range(4)
    }


def test_a_pipeline_moves_to_another_store_and_its_stages_stay(stack: TwoStores, tmp_path: Path) -> None:
    env = clean_environment() | stack.env | {"PENSTOCK_REDIS_URL": stack.main.url, "PENSTOCK_PIPELINES": "{}"}
    own = env | {"PENSTOCK_WORKER__BEAT_S": "0.5", "PENSTOCK_WORKER__LEASE_S": "4"}
    held = Held(tmp_path)
    before = stack.submit("line", held.value(1))
    held.await_begun("near")
    done = called_here("store", "move", "line", "--to", "b", "--no-wait", cwd=tmp_path, env=own)
    assert done.returncode == 0, done.stderr
    after = stack.submit("line", held.value(2))
    assert (".1-line" in before, ".1-line" in after) == (False, True)
    held.kill_and_go_on(stack)
    assert [stack.output(job, timeout_s=60.0)["n"] for job in (before, after)] == [3, 4]
    refused = called_here("store", "move", "near", "--to", "b", cwd=tmp_path, env=own)
    assert refused.returncode != 0
    assert "near is a stage of the pipeline" in refused.stderr
    assert "serve the model under another name" in refused.stderr
