"""The table of docs/reference/handlers.md that says which status a failure's code has, asked for in every protocol."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

pytest.importorskip("grpc")
import grpc

from penstock import errors
from penstock.gateway.asgi.problems import is_of_input
from penstock.gateway.rpc.pool import MessagePool
from penstock.loadtest.stack import free_port
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually
from tests.markdown import ROOT

MODEL = "coded"
MODELS = {MODEL: {"source": "coded.py:Coded"}}
OIP = MessagePool("penstock.extensions.oip.grpc", "inference.binpb")
TORCHSERVE = MessagePool("penstock.extensions.torchserve.grpc", "torchserve.binpb")
INFERENCE = "org.pytorch.serve.grpc.inference"
# Which codes of a model's own the table means by these words.
OWN = {"bad_...": "bad_image", "invalid_...": "invalid_date", "any other code of your own": "too_quiet"}


@dataclass(frozen=True, slots=True)
class Row:
    code: str
    http: int
    torchserve: int
    grpc: str


def rows() -> Iterator[Row]:
    page = (ROOT / "docs" / "reference" / "handlers.md").read_text("utf-8")
    section = page.partition("### Codes and statuses")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (.+) \|$", section, re.MULTILINE)[1:]:
        names, http, torchserve, code = line.split(" | ")
        for name in re.findall(r"`([a-z_.]+)`", names) or [names]:
            yield Row(OWN.get(name, name), int(http), int(torchserve), code.strip("`"))


ROWS = list(rows())


@dataclass(frozen=True, slots=True)
class Protocols:
    """Two gateways, since TorchServe's protocol takes the place of our own predictions; and their gRPC ports."""

    ours: GatewayClient
    theirs: GatewayClient
    oip: grpc.Channel
    torchserve: grpc.Channel


@pytest.fixture(scope="module")
def protocols(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protocols]:
    ports = [free_port(), free_port()]
    env = {"PENSTOCK_TORCHSERVE__ENABLED": "true", "PENSTOCK_TORCHSERVE__GRPC_INFERENCE_PORT": str(ports[1])}
    folders = [tmp_path_factory.mktemp(name) for name in ("ours", "theirs")]
    with (
        gateway_process(redis_url, folders[0], models=MODELS, grpc_port=ports[0]) as ours,
        gateway_process(redis_url, folders[1], models=MODELS, env=env) as theirs,
        ExitStack() as stack,
    ):
        channels = [stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}")) for port in ports]
        hand = Hand(redis_url, MODEL)
        hand.announce(VersionInfo(accepts=("application/json", "*/*")))
        eventually(lambda: all(client.get(f"/v1/models/{MODEL}").json()["ready"] for client in (ours, theirs)))
        yield Protocols(ours, theirs, *channels)
        hand.store.withdraw_worker(hand.name)
        hand.store.close()


@contextmanager
def failing(redis_url: str, code: str) -> Iterator[None]:
    """A worker that fails every job with this code, until the block ends."""
    stop = threading.Event()

    def fail() -> None:
        hand = Hand(redis_url, MODEL)
        while not stop.wait(0.001):
            for job in hand.claim().jobs:
                hand.fail(job, code, "the reason")
        hand.store.close()

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def refused(channel: grpc.Channel, path: str, message: Any) -> str:
    with pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(path)(message.SerializeToString(), timeout=30.0)
    name: str = refusal.value.code().name
    return name


def over_oip(channel: grpc.Channel) -> str:
    request = OIP.message_class("inference.ModelInferRequest")(model_name=MODEL)
    request.inputs.add(name="x", datatype="INT64", shape=[1]).contents.int64_contents.append(4)
    return refused(channel, "/inference.GRPCInferenceService/ModelInfer", request)


def over_torchserve(channel: grpc.Channel) -> str:
    request = TORCHSERVE.message_class(f"{INFERENCE}.PredictionsRequest")(model_name=MODEL, input={"data": b"4"})
    return refused(channel, f"/{INFERENCE}.InferenceAPIsService/Predictions", request)


HTTP: dict[str, Callable[[GatewayClient], httpx2.Response]] = {
    "own": lambda client: client.post(f"/predictions/{MODEL}", json=4),
    "openai": lambda client: client.post("/v1/embeddings", json={"model": MODEL, "input": "one"}),
    "oip": lambda client: client.post(
        f"/v2/models/{MODEL}/infer", json={"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [4]}]}
    ),
}
PREDICTIONS = (f"/replicate/v1/models/penstock/{MODEL}/predictions", f"/cog/{MODEL}/predictions")


@pytest.mark.parametrize("row", ROWS, ids=[row.code for row in ROWS])
def test_a_failures_code_has_its_status_in_every_protocol(protocols: Protocols, redis_url: str, row: Row) -> None:
    # Regression: a handler that raised NotFound or Conflict of penstock.errors was answered with a 500, as if it had a bug.
    with failing(redis_url, row.code):
        answers = {name: ask(protocols.ours) for name, ask in HTTP.items()}
        torchserve = protocols.theirs.post(f"/predictions/{MODEL}", json=4)
        found = (over_oip(protocols.oip), over_torchserve(protocols.torchserve))
        made = [protocols.ours.post(path, json={"input": {}}, headers={"prefer": "wait"}) for path in PREDICTIONS]
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(HTTP, row.http)
    assert (torchserve.status_code, torchserve.json()["code"]) == (row.torchserve, row.torchserve)
    assert found == (row.grpc, "UNAVAILABLE" if row.torchserve == 503 else row.grpc)
    assert [(answer.json()["status"], answer.json()["error"]) for answer in made] == [("failed", "the reason")] * 2
    problem = answers["own"].json()
    assert (problem["code"], problem["detail"]) == (row.code, "the reason")
    job = protocols.ours.get(f"/v1/jobs/{problem['job']}/result")
    assert (job.status_code, job.json()["code"]) == (409, row.code)


def test_the_table_has_every_error_of_a_caller_and_blames_the_input_for_no_other() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CallerError)}
    codes = {row.code: row.http < 500 for row in ROWS}
    assert {kind.kind for kind in kinds} - codes.keys() == {errors.ConfigError.kind}
    assert {code: is_of_input(code) for code in codes} == codes
