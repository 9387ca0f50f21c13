"""A run of a slow model that is cancelled amid a shard: batches of OpenAI's client, runs of ours, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from penstock.client.runs import RowFailed
from penstock.client.sync import Client
from tests.acceptance.test_cli import Up, stopped
from tests.acceptance.test_runs import Background
from tests.acceptance.warm_up import started
from tests.eventually import eventually

# Each row begins a line in the file `begun`. While the file `slow` exists a row takes so long that a shard of all rows would
# take a minute.
MODEL = """
import time
from pathlib import Path

from penstock import Handler

HERE = Path(__file__).parent


class Slow(Handler):
    def inference(self, batch: list) -> list:
        for item in batch:
            with open(HERE / "begun", "a") as file:
                file.write("x")
            time.sleep(1.5 * (HERE / "slow").exists())
        return [{"y": item["x"] ** 2} for item in batch]
"""
SETTINGS = """
[models.slow]
source = "models.py:Slow"
max_batch_size = 1
"""
ROWS = 40


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("cancelled")
    (folder / "models.py").write_text(MODEL)
    (folder / "penstock.toml").write_text(SETTINGS)
    running = started(folder)
    yield running
    assert stopped(running) == 0, (folder / "up.log").read_text()


@contextmanager
def slow(folder: Path) -> Iterator[None]:
    (folder / "begun").write_text("")
    (folder / "slow").touch()
    try:
        yield
    finally:
        (folder / "slow").unlink()


def await_third_row(folder: Path) -> None:
    """The first two rows have finished then, because each is a micro-batch of its own."""
    eventually(lambda: len((folder / "begun").read_text()) >= 3, timeout_s=60.0)


def lines_of(up: Up, link: str) -> list[Any]:
    return [json.loads(line) for line in httpx2.get(up.ready["url"] + link).text.splitlines()]


def test_a_batch_cancelled_amid_a_shard_shows_the_lines_that_finished(up: Up) -> None:
    """Regression: the batch waited 30 s for its shard, then gave it up; no line was in the output, and all had failed."""
    line = {"method": "POST", "url": "/v1/models/slow/jobs"}
    text = "".join(json.dumps({**line, "custom_id": str(number), "body": {"x": number}}) + "\n" for number in range(ROWS))
    with openai.OpenAI(base_url=f"{up.ready['url']}/v1", api_key="none") as client, slow(up.folder):
        file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
        asked: Any = {"endpoint": line["url"], "completion_window": "1h"}
        batch = client.batches.create(input_file_id=file.id, **asked)
        await_third_row(up.folder)
        client.batches.cancel(batch.id)
        batch = eventually(
            lambda: found if (found := client.batches.retrieve(batch.id)).cancelled_at else None, timeout_s=120.0
        )
        output, errors = (
            [json.loads(text) for text in client.files.content(file_id or "").text.splitlines()]
            for file_id in (batch.output_file_id, batch.error_file_id)
        )
    assert 2 <= len(output) < ROWS
    assert all(line["response"]["body"] == {"y": int(line["custom_id"]) ** 2} for line in output)
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert sorted(int(line["custom_id"]) for line in [*output, *errors]) == list(range(ROWS))
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (ROWS, len(output), 0)
    assert (counts.model_extra or {})["x_cancelled"] == len(errors)
    with Client(up.ready["url"]) as ours:
        progress = ours.run_handle(batch.id.removeprefix("batch_")).view.body["progress"]
    assert (progress["done"], progress["failed"], progress["cancelled"]) == (len(output), 0, len(errors))


def test_a_run_cancelled_amid_a_shard_shows_the_rows_that_finished_and_a_retry_runs_the_others(up: Up) -> None:
    """Regression: a cancelled run had no output at all."""
    with Client(up.ready["url"]) as client:
        with slow(up.folder):
            run = client.run("slow", [{"x": number} for number in range(ROWS)])
            await_third_row(up.folder)
            run.cancel()
            eventually(lambda: run.refresh().status == "cancelled", timeout_s=120.0)
        progress = run.view.body["progress"]
        outputs = [line["output"] for line in lines_of(up, run.view.body["links"]["output"])]
        ran = [number for number, output in enumerate(outputs) if output is not None]
        assert len(outputs) == ROWS
        assert 2 <= len(ran) < ROWS
        assert all(outputs[number] == {"y": number**2} for number in ran)
        assert (progress["rows"], progress["done"], progress["failed"]) == (ROWS, len(ran), 0)
        assert progress["cancelled"] == ROWS - len(ran)
        errors = lines_of(up, run.view.body["links"]["errors"])
        assert {error["code"] for error in errors} == {"cancelled"}
        assert [error["row"] for error in errors] == [number for number in range(ROWS) if number not in ran]
        again = run.retry_failed()
        assert again.wait(60.0).status == "completed"
        assert [result for result in again if not isinstance(result, RowFailed)] == [{"y": n**2} for n in range(ROWS)]


def test_a_command_that_is_cancelled_amid_a_shard_counts_no_row_as_failed_and_resumes(up: Up) -> None:
    (up.folder / "in.jsonl").write_text("".join(f'{{"x": {number}}}\n' for number in range(ROWS)))
    with slow(up.folder):
        run = Background(up, "slow", "in.jsonl", "-o", "out.jsonl")
        run_id = str(eventually(lambda: run.events, timeout_s=60.0)[0]["run"])
        await_third_row(up.folder)
        assert up.penstock("run", "cancel", run_id).returncode == 0
        assert run.process.wait(120.0) == 1
        end = run.events[-1]
        assert (end["state"], end["failed"]) == ("cancelled", 0)
    assert up.penstock("run", "resume", run_id).returncode == 0
    outputs = [json.loads(line)["output"] for line in (up.folder / "out.jsonl").read_text().splitlines()]
    assert outputs == [{"y": number**2} for number in range(ROWS)]
