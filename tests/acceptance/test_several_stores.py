"""One gateway and one worker over two stores, through HTTP: models in both, one store lost and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.acceptance.test_cli import clean_environment
from tests.command import called_here
from tests.eventually import eventually
from tests.faults.server import Server
from tests.integration.worker_process import WorkerProcess

SQUARE = str(Path(__file__).parents[2] / "examples" / "square.py")
MODELS = {"near": {"source": SQUARE}, "far": {"source": SQUARE}}


@pytest.fixture(scope="module")
def other(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("other"), fsync="everysec")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def env(other: Server) -> dict[str, str]:
    return {"PENSTOCK_STORES__B__URL": other.url, "PENSTOCK_STORES__B__MODELS": "far"}


@pytest.fixture(scope="module")
def worker(redis_url: str, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("worker"), MODELS, env, beat_s=1.0, lease_s=4.0) as worker:
        yield worker


@pytest.fixture(scope="module")
def client(
    redis_url: str, env: dict[str, str], worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayClient]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS, env=env) as client:
        eventually(lambda: client.get("/readyz").status_code == 200, timeout_s=60.0)
        yield client


def predict(client: httpx2.Client, model: str) -> httpx2.Response:
    return client.post(f"/predictions/{model}", json={"x": 4})


def test_models_of_both_stores_are_answered(client: GatewayClient, other: Server) -> None:
    for model in ("near", "far"):
        assert predict(client, model).json() == {"y": 16}
    with other.client() as store:
        assert {key.partition(b"}")[0] for key in store.keys("ps:{*")} == {b"ps:{far"}


def test_a_store_that_is_lost_takes_its_own_models_along_and_no_others(client: GatewayClient, other: Server) -> None:
    other.kill()
    refused = predict(client, "far")
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    assert refused.json()["detail"] == "The job store 'b' cannot be reached or refuses writes."
    assert predict(client, "near").json() == {"y": 16}
    assert client.get("/readyz").status_code == 200
    queues = client.get("/v1/queues").json()
    assert ([queue["model"] for queue in queues["data"]], queues["away"]) == (["near"], ["far"])
    assert client.get("/v1/queues/far").status_code == 503
    metrics = client.get("/metrics").text
    assert 'penstock_other_store_up{store="b"} 0.0' in metrics
    assert 'penstock_queue_depth{model="near"' in metrics
    assert 'penstock_queue_depth{model="far"' not in metrics
    other.start()
    eventually(lambda: predict(client, "far").status_code == 200, timeout_s=20.0)
    eventually(lambda: 'penstock_other_store_up{store="b"} 1.0' in client.get("/metrics").text)
    assert {queue["model"] for queue in client.get("/v1/queues").json()["data"]} == {"near", "far"}


def test_doctor_tells_the_stores_apart_and_what_lies_where(
    client: GatewayClient, redis_url: str, env: dict[str, str], tmp_path: Path
) -> None:
    assert predict(client, "far").status_code == 200
    given = clean_environment() | env | {"PENSTOCK_REDIS_URL": redis_url, "PENSTOCK_MODELS": json.dumps(MODELS)}
    found = called_here("doctor", "--json", cwd=tmp_path, env=given).stdout
    lines = {line["name"]: line for line in map(json.loads, found.splitlines())}
    assert "functions loaded" in lines["stores.b"]["text"]
    assert lines["places"]["text"] == "main: near; b: far"
