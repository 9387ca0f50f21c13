"""Pipelines through the doors that models have: HTTP, the client, the command, the dashboard."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from penstock import Client
from penstock.errors import PenstockError
from penstock.extensions.pipelines.files import read_pipelines
from tests.command import called_here
from tests.eventually import eventually
from tests.extensions.pipelines.integration import pipeline_stack
from tests.stack import Stack

# What passes through HTTP. tests/extensions/pipelines/integration/test_pipelines.py runs the other models and pipelines.
MODELS = {name: pipeline_stack.MODELS[name] for name in ("a", "b", "c", "grow", "exact")}
PIPELINES = {name: pipeline_stack.PIPELINES[name] for name in ("chain", "nested", "block", "typed")}
DECLARED = """
import penstock
from penstock import Handler


@penstock.model
def count_letters(item: dict) -> dict:
    return {"letters": len(item["text"])}


class Shout(Handler):
    def inference(self, batch: list, /) -> list:
        return [{"text": item["text"].upper()} for item in batch]


loud = penstock.pipeline(
    "loud",
    {"shout": Shout, "count": count_letters},
    output={"text": "shout.text", "letters": "count.letters"},
)
"""


@pytest.fixture(scope="module")
def http(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("w")
    (folder / "loud.py").write_text(DECLARED)
    declared = read_pipelines(folder / "loud.py")
    models = {**MODELS, **{name: {"source": source} for name, source in declared.models.items()}}
    tables = {**PIPELINES, **declared.pipelines}
    with Stack(folder, models, store=redis_url, env={"PENSTOCK_PIPELINES": json.dumps(tables)}) as stack:
        stack.start_worker(pipelines=tables, beat_s=0.2).await_ready()
        client = stack.start_gateway()
        eventually(lambda: client.get("/v1/models/chain").json()["versions"]["1"]["loaded"])
        yield client


@pytest.fixture
def client(http: httpx2.Client) -> Iterator[Client]:
    with Client(str(http.base_url)) as made:
        yield made


def ended(http: httpx2.Client, pipeline: str, value: object) -> str:
    answer = http.post(f"/v1/models/{pipeline}/jobs", json=value)
    assert answer.status_code == 202, answer.text
    id: str = answer.json()["id"]
    eventually(lambda: http.get(f"/v1/jobs/{id}", params={"wait": "5"}).json()["status"] in ("succeeded", "failed"))
    return id


def test_a_pipeline_is_submitted_to_and_read_like_a_model(http: httpx2.Client) -> None:
    id = ended(http, "chain", {"n": 1})
    view = http.get(f"/v1/jobs/{id}").json()
    assert (view["model"], view["status"], view["progress"]["fraction"]) == ("chain", "succeeded", 1.0)
    assert http.get(f"/v1/jobs/{id}/result").json() == {"n": 4, "trail": ["a", "b", "c"]}


def test_a_pipeline_that_is_declared_in_code_runs_like_one_of_settings(http: httpx2.Client) -> None:
    answer = http.post("/predictions/loud", json={"text": "hey"})
    assert (answer.status_code, answer.json()) == (200, {"text": "HEY", "letters": 3})


def test_an_answer_is_given_at_once_and_many_inputs_are_taken(http: httpx2.Client, client: Client) -> None:
    answer = http.post("/predictions/chain", json={"n": 2})
    assert (answer.status_code, answer.json()["n"]) == (200, 5)
    assert client.predict("nested", {"n": 0})["trail"] == ["a", "b", "c", "a"]
    jobs = client.submit_many("chain", [{"n": n} for n in range(5)])
    assert [job.result(timeout_s=30.0)["n"] for job in jobs] == [3, 4, 5, 6, 7]


def test_a_repeat_under_its_key_is_the_first_job(http: httpx2.Client) -> None:
    key = {"idempotency-key": "once"}
    first, second = (http.post("/v1/models/chain/jobs", json={"n": 1}, headers=key).json()["id"] for _ in range(2))
    assert first == second


def test_a_large_input_and_a_large_result_go_through(http: httpx2.Client) -> None:
    answer = http.post("/predictions/block", json={"bytes": 3_000_000, "pad": "x" * 100_000})
    assert (answer.headers["content-type"], len(answer.content)) == ("application/x-block", 3_000_000)


def test_a_failure_says_where_over_http(http: httpx2.Client) -> None:
    answer = http.post("/predictions/chain", json={"fail": "b"})
    assert answer.status_code >= 400
    assert "stage 'second' (model b): b was told to fail" in answer.text


def test_the_timeline_names_the_jobs_of_the_stages(http: httpx2.Client, client: Client) -> None:
    id = ended(http, "chain", {"fail": "b"})
    timeline = client.timeline(id)
    assert [(one.stage, one.model, one.status) for one in timeline.stage_jobs] == [
        ("first", "a", "succeeded"),
        ("second", "b", "failed"),
        ("third", "c", "skipped"),
    ]
    first, second, third = timeline.stage_jobs
    assert http.get(f"/v1/jobs/{first.id}").json()["model"] == "a"
    assert (second.error, third.id, third.took_s) == ("b was told to fail", "", None)
    other = client.timeline(first.id)
    assert other.stage_jobs == ()


def test_the_summary_of_a_timeline_says_that_the_stages_took_the_time(
    http: httpx2.Client, client: Client, tmp_path: Path
) -> None:
    id = http.post("/v1/models/chain/jobs", json={"until": str(tmp_path / "gate"), "hold": "b"}).json()["id"]
    # The stage is held until its run is the longest part, however long the job had to wait on a busy machine.
    eventually(lambda: "has been running" in client.timeline(id).summary)
    (tmp_path / "gate").touch()
    eventually(lambda: "through its stages" in client.timeline(id).summary)


def test_the_command_and_the_page_of_a_job_show_its_stages(http: httpx2.Client) -> None:
    id = ended(http, "chain", {"n": 1})
    shown = called_here("jobs", "show", id, env={**os.environ, "PENSTOCK_URL": str(http.base_url)})
    assert shown.returncode == 0, shown.stderr
    for line in (["first", "a", "succeeded"], ["second", "b", "succeeded"], ["third", "c", "succeeded"]):
        assert any(found.split()[:3] == line for found in shown.stdout.splitlines()), shown.stdout
    page = http.get(f"/ui/jobs/{id}").text
    ids = [one["id"] for one in http.get(f"/v1/jobs/{id}/timeline").json()["stage_jobs"]]
    assert all(f'/ui/jobs/{one}"' in page for one in ids)


def test_a_cancel_over_http_ends_the_whole(http: httpx2.Client, tmp_path: Path) -> None:
    held = {"until": str(tmp_path / "gate"), "hold": "b"}
    id = http.post("/v1/models/chain/jobs", json=held).json()["id"]
    eventually(lambda: http.get(f"/v1/jobs/{id}/timeline").json()["stage_jobs"][1]["status"] == "running")
    assert http.delete(f"/v1/jobs/{id}").status_code == 202
    eventually(lambda: http.get(f"/v1/jobs/{id}").json()["status"] == "cancelled")
    (tmp_path / "gate").touch()
    statuses = [one["status"] for one in http.get(f"/v1/jobs/{id}/timeline").json()["stage_jobs"]]
    assert statuses[::2] == ["succeeded", "skipped"]


def test_an_input_that_the_first_stage_does_not_take_is_refused_at_the_door(http: httpx2.Client) -> None:
    answer = http.post("/v1/models/typed/jobs", json={"n": "many"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")


def test_a_run_over_files_takes_no_pipeline_and_says_so(client: Client) -> None:
    with pytest.raises(PenstockError, match="is made of stages"):
        client.run("chain", [{"n": 1}])


def test_the_models_list_names_pipelines(http: httpx2.Client) -> None:
    assert {"chain", "nested", "a"} <= {model["name"] for model in http.get("/v1/models").json()["data"]}
