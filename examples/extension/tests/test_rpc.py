"""JSON-RPC as its specification has it, against a real gateway and worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.embedded.server import EmbeddedServer
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess

SQUARE = Path(__file__).parents[2] / "square.py"
MODELS = {"square": {"source": f"{SQUARE}:square"}}
Sender = Callable[[Any], httpx2.Response]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    folder = tmp_path_factory.mktemp("rpc")
    env = {"PENSTOCK_JSONRPC__MAX_BATCH": "6"}
    with (
        EmbeddedServer(folder / "store", fsync="everysec") as server,
        WorkerProcess(server.url, folder / "worker", MODELS) as worker,
        gateway_process(server.url, folder, models=MODELS, env=env) as gateway_client,
    ):
        worker.await_ready()
        eventually(lambda: gateway_client.get("/v1/models/square").json()["ready"])
        yield gateway_client


@pytest.fixture
def send(gateway: GatewayClient) -> Sender:
    return lambda said: gateway.post("/rpc", json=said)


def call(method: str, params: Any = None, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": {} if params is None else params, **members}


def square(x: Any, **members: Any) -> dict[str, Any]:
    return call("predict", {"model": "square", "input": {"x": x}}, **members)


def test_a_call_has_its_result_under_its_id(send: Sender) -> None:
    answer = send(square(4, id="a"))
    assert answer.json() == {"jsonrpc": "2.0", "result": {"y": 16}, "id": "a"}
    assert answer.headers["x-penstock-job"]


def test_the_calls_of_a_batch_are_answered_each_for_itself(send: Sender) -> None:
    answer = send([square(2, id=1), square("two", id=2), {"foo": "boo"}, call("nothing", id=3), square(5, id=None)])
    assert answer.status_code == 200
    results = [(one["id"], one.get("result", one.get("error", {}).get("code"))) for one in answer.json()]
    assert results == [(1, {"y": 4}), (2, -32602), (None, -32600), (3, -32601), (None, {"y": 25})]


def test_notifications_have_no_response_and_their_ends_are_tallied(send: Sender) -> None:
    def ended() -> int:
        tally: dict[str, dict[str, int]] = send(call("tally", {"model": "square"}, id=1)).json()["result"]
        return tally.get("notify", {}).get("succeeded", 0)

    assert send(square(1)).status_code == 204
    before = eventually(ended)
    for said in (square(2), [square(2), square("two")], call("nothing")):
        answer = send(said)
        assert (answer.status_code, answer.content) == (204, b"")
    eventually(lambda: ended() == before + 2)


@pytest.mark.parametrize("said", [[], [square(1, id=1)] * 7, 1, {"jsonrpc": "1.0", "method": "predict"}, square(1, id=True)])
def test_what_is_no_call_has_one_error_without_an_id(send: Sender, said: Any) -> None:
    answer = send(said)
    assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (400, None, -32600)


def test_a_body_that_is_no_json_is_a_parse_error(gateway: GatewayClient) -> None:
    answer = gateway.post("/rpc", content=b'{"jsonrpc"', headers={"content-type": "application/json"})
    assert (answer.json()["error"]["code"], answer.json()["id"]) == (-32700, None)


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (call("nothing", id=1), 400, -32601),
        (call("predict", [1, 2], id=1), 400, -32602),
        (call("predict", {"modle": "square"}, id=1), 400, -32602),
        (call("predict", {"model": "nobody", "input": 1}, id=1), 404, -32602),
        (call("predict", {"model": "square", "input": {"x": 1}, "options": {"deadlin_s": 3}}, id=1), 400, -32602),
        (call("get", {"job": "nothing"}, id=1), 400, -32602),
    ],
)
def test_a_call_that_is_refused_has_a_number_and_the_members_of_the_problem(
    send: Sender, said: Any, status: int, code: int
) -> None:
    answer = send(said)
    assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (status, 1, code)
    assert answer.json()["error"]["data"]["status"] == status


def test_a_job_is_submitted_read_and_cancelled(send: Sender) -> None:
    job = send(call("submit", {"model": "square", "input": {"x": 6}}, id=1)).json()["result"]["job"]
    read = call("get", {"job": job}, id=2)
    ended = eventually(lambda: (reply := send(read).json()["result"])["status"] == "succeeded" and reply)
    assert (ended["id"], ended["output"]) == (job, {"y": 36})
    later = call("submit", {"model": "square", "input": {"x": 6}, "options": {"delay_s": 60}}, id=3)
    job = send(later).json()["result"]["job"]
    assert send(call("cancel", {"job": job}, id=4)).json()["result"] == {"job": job, "outcome": "cancelled"}
    assert send(call("get", {"job": job}, id=5)).json()["result"]["status"] == "cancelled"


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_verb_prints_the_result_of_one_call(gateway: GatewayClient) -> None:
    params = json.dumps({"model": "square", "input": {"x": 7}})
    done = penstock("rpc", "predict", params, "--url", str(gateway.base_url))
    assert json.loads(done.stdout) == {"y": 49}
    refused = penstock("rpc", "predict", '{"model": "nobody"}', "--url", str(gateway.base_url))
    assert (refused.returncode, refused.stderr.startswith("error -32602: ")) == (1, True)
    assert penstock("rpc", "predict", params, "--notify", "--url", str(gateway.base_url)).stdout == ""


def test_the_table_is_checked_with_all_others(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[jsonrpc]\nmax_bach = 5\n")
    done = penstock("config", "--config", str(tmp_path / "penstock.toml"))
    assert (done.returncode, "jsonrpc.max_bach" in done.stderr) == (4, True)
