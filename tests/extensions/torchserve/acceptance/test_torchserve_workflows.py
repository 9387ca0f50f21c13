"""TorchServe's workflows: a .war as its archiver packs it, beside archives, served at /wfpredict and everywhere else."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx2
import pytest

from benchmarks.torchserve import workflows
from benchmarks.torchserve.archives import SOURCES
from benchmarks.torchserve.differences import Difference, differences
from benchmarks.torchserve.exchanges import Exchange, send
from tests.eventually import eventually
from tests.stack import Stack

SEQUENTIAL, PARALLEL = ((SOURCES / "workflow" / f"{name}.yaml").read_text("utf-8") for name in workflows.WORKFLOWS)
FUNCTIONS = (SOURCES / "workflow" / "functions.py").read_text("utf-8")


def zipped(path: Path, members: Mapping[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)


def packed_workflow(path: Path, spec: str) -> None:
    workflow = {"workflowName": path.stem, "specFile": "spec.yaml", "handler": "functions.py"}
    manifest = json.dumps({"createdOn": "23/11/2026 10:00:00", "archiverVersion": "0.2.11", "workflow": workflow})
    zipped(path, {"WAR-INF/MANIFEST.json": manifest, "spec.yaml": spec, "functions.py": FUNCTIONS})


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "models").mkdir()
    (folder / "workflows").mkdir()
    # By the stock archivers; all others have what those refuse to pack, or the same once more.
    workflows.build_models(folder / "models")
    workflows.build_workflows(folder / "workflows")
    # TorchServe's own store has them too: a second registration is refused by its name.
    workflows.build_workflows(folder / "models")
    packed_workflow(folder / "models" / "later.war", SEQUENTIAL)
    broken = {"MAR-INF/MANIFEST.json": json.dumps({"model": {"modelName": "broken", "handler": "serve.py"}})}
    zipped(folder / "models" / "broken.mar", {**broken, "serve.py": "raise RuntimeError('no such weights')"})
    packed_workflow(folder / "models" / "sick.war", PARALLEL.replace("negate.mar", "broken.mar"))
    packed_workflow(folder / "models" / "torn.war", PARALLEL.replace("negate.mar", "nowhere.mar"))
    packed_workflow(folder / "models" / "wrong.war", "dag: {clean: [absent]}".replace("absent", "a.b"))
    (folder / "penstock.toml").write_text("""
[torchserve]
enabled = true
model_api = true
model_store = "models"
[worker]
model_dir = "models"
beat_s = 0.2
[workflows.line]
source = "workflows/line.war"
[workflows.fork]
source = "workflows/fork.war"
""")
    return folder / "penstock.toml"


@pytest.fixture(scope="module")
def http(redis_url: str, config: Path) -> Iterator[httpx2.Client]:
    env = {"PENSTOCK_MODELS": "", "PENSTOCK_CONFIG": str(config)}
    with Stack(config.parent, {}, store=redis_url, env=env) as stack:
        # Two workflows, with three and four nodes.
        stack.start_worker(slots=2 + 3 + 4).await_ready()
        client = stack.start_gateway()
        eventually(lambda: client.get("/v1/models/fork").json()["versions"]["1.0"]["loaded"])
        eventually(lambda: client.get("/v1/models/line").json()["versions"]["1.0"]["loaded"])
        yield client


@pytest.mark.parametrize("exchange", workflows.exchanges(), ids=lambda exchange: exchange.key)
def test_the_answer_is_that_of_torchserve(http: httpx2.Client, exchange: Exchange) -> None:
    theirs = workflows.recorded()[exchange.key]
    assert http.base_url.port is not None
    found = differences({exchange.key: theirs}, {exchange.key: send(exchange, http.base_url.port)})
    meant = [difference for difference in found if any(one.covers(difference) for one in workflows.MEANT)]
    assert [difference for difference in found if difference not in meant] == []
    assert bool(meant) is any(one.covers(Difference(exchange.key, "", "", "")) for one in workflows.MEANT)


def test_a_sequence_of_functions_and_models_answers_with_its_last_node(http: httpx2.Client) -> None:
    answer = http.post("/wfpredict/line", content=b'{"n": 4}')
    assert (answer.status_code, answer.json()) == (200, {"framed": {"n": 8}})


def test_what_has_several_parents_gets_a_field_of_each(http: httpx2.Client) -> None:
    answer = http.post("/wfpredict/fork", json={"n": 4})
    assert (answer.status_code, answer.json()) == (200, {"double": {"n": 8}, "negate": {"n": -4}})


def test_a_form_reaches_the_first_node_as_its_fields(http: httpx2.Client) -> None:
    answer = http.post("/wfpredict/line", files={"data": ("n.json", b'{"n": 5}', "application/octet-stream")})
    assert (answer.status_code, answer.json()) == (200, {"framed": {"n": 10}})


def test_a_node_that_fails_ends_the_workflow(http: httpx2.Client) -> None:
    answer = http.post("/wfpredict/fork", json={"n": 666})
    assert answer.status_code == 503
    assert answer.json() == {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}


def test_an_unknown_workflow_is_not_found(http: httpx2.Client) -> None:
    answer = http.post("/wfpredict/nothing", json={})
    assert answer.status_code == 404
    assert answer.json()["type"] == "WorkflowNotFoundException"


def test_a_workflow_is_a_pipeline_to_everybody_else(http: httpx2.Client) -> None:
    id = http.post("/v1/models/line/jobs", json={"n": 1}).json()["id"]
    eventually(lambda: http.get(f"/v1/jobs/{id}").json()["status"] == "succeeded")
    stages = http.get(f"/v1/jobs/{id}/timeline").json()["stage_jobs"]
    assert [(one["stage"], one["model"]) for one in stages] == [
        ("clean", "line__clean"),
        ("double", "line__double"),
        ("frame", "line__frame"),
    ]
    assert http.get("/v1/models/line__double").json()["policy"]["max_batch_size"] == 8


def registered(http: httpx2.Client, **params: str) -> httpx2.Response:
    return http.post("/workflows", params=params, timeout=90.0)


def test_a_workflow_is_registered_described_called_and_unregistered_at_run_time(http: httpx2.Client) -> None:
    answer = registered(http, url="later.war")
    done = {"status": "Workflow later has been registered and scaled successfully."}
    assert (answer.status_code, answer.json()) == (200, done)
    assert http.post("/wfpredict/later", json={"n": 3}).json() == {"framed": {"n": 6}}
    listed = http.get("/workflows").json()["workflows"]
    assert {"workflowName": "later", "workflowUrl": "later.war"} in listed
    assert {one["workflowName"] for one in listed} == {"line", "fork", "later"}
    [described] = http.get("/workflows/later").json()
    assert (described["workflowUrl"], described["workflowDag"]) == ("later.war", "{clean=[double], double=[frame]}")
    again = registered(http, url="later.war")
    assert (again.status_code, again.json()["message"]) == (409, "Workflow later is already registered.")
    gone = http.delete("/workflows/later")
    assert (gone.status_code, gone.json()) == (200, {"status": 'Workflow "later" unregistered'})
    eventually(lambda: http.post("/wfpredict/later", json={"n": 3}).status_code == 404)
    assert http.get("/workflows/later").json()["type"] == "WorkflowNotFoundException"


def test_nothing_is_left_of_a_workflow_that_cannot_be_registered(http: httpx2.Client) -> None:
    answer = registered(http, url="torn.war", workflow_name="torn2")
    assert answer.status_code == 404
    assert "nowhere.mar" in answer.json()["message"]
    wrong = registered(http, url="wrong.war")
    assert (wrong.status_code, wrong.json()["type"]) == (400, "InvalidWorkflowException")
    assert "'a.b' is no name of a node" in wrong.json()["message"]
    sick = registered(http, url="sick.war")
    assert (sick.status_code, sick.json()["type"]) == (500, "WorkflowException")
    assert "Workflow Node sick__negate failed to register. Details: " in sick.json()["message"]
    assert "no such weights" in sick.json()["message"]
    assert {one["workflowName"] for one in http.get("/workflows").json()["workflows"]} == {"line", "fork"}
    names = [model["name"] for model in http.get("/v1/models").json()["data"]]
    assert not [name for name in names if name.startswith(("torn2", "sick"))]


def test_a_pipeline_is_loaded_over_http_too(http: httpx2.Client) -> None:
    stages = [{"name": "twice", "model": "line__double"}, {"name": "again", "model": "line__double", "after": ["twice"]}]
    assert http.post("/v1/models/quadruple/versions", json={"version": "1", "stages": stages}).status_code == 202
    eventually(lambda: http.get("/v1/models/quadruple").json()["versions"]["1"]["loaded"])
    unknown = {"version": "2", "stages": [{"name": "x", "model": "line__dubble"}]}
    refused = http.post("/v1/models/quadruple/versions", json=unknown)
    assert refused.status_code == 422
    assert "line__dubble" in refused.json()["detail"]
    itself = {"version": "2", "stages": [{"name": "x", "model": "quadruple"}]}
    assert http.post("/v1/models/quadruple/versions", json=itself).status_code == 422
