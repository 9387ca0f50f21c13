"""A handler of TorchServe's that writes its answer in pieces, in a real worker: over HTTP and over gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("grpc")
import grpc

from penstock.gateway.rpc.pool import MessagePool
from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient
from tests.eventually import eventually
from tests.stack import Stack

PACKAGE = "org.pytorch.serve.grpc.inference"
POOL = MessagePool("penstock.extensions.torchserve.grpc", "torchserve.binpb")
HANDLER = """
import time
from pathlib import Path

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    wanted = data[0].get("body", data[0].get("data"))
    if isinstance(wanted, dict):
        wanted = wanted["gate"]
    gate = Path(bytes(wanted).decode() if isinstance(wanted, (bytes, bytearray)) else wanted)
    context.set_response_content_type(0, "text/plain")
    context.set_response_header(0, "x-seen", context.get_request_header(0, "X-Tenant") or "nobody")
    send_intermediate_predict_response(["first " + context.get_request_id(0)], context.request_ids, "", 200, context)
    while not gate.exists():
        time.sleep(0.01)
    if gate.read_text() == "raise":
        raise ValueError("boo")
    return [" last"]
"""


class Site:
    def __init__(self, http: GatewayClient, port: int, folder: Path) -> None:
        self.http = http
        self.port = port
        self._folder = folder

    def gate(self, name: str) -> Path:
        """A file for which the handler waits between its two pieces."""
        return self._folder / name


@pytest.fixture(scope="module")
def site(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("streams")
    archive = folder / "steps"
    (archive / "MAR-INF").mkdir(parents=True)
    (archive / "handler.py").write_text(HANDLER)
    model = {"modelName": "steps", "handler": "handler.py", "modelVersion": "1.0"}
    (archive / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"runtime": "python", "model": model}))
    models, port = {"steps": {"source": str(archive)}}, free_port()
    env = {"PENSTOCK_TORCHSERVE__ENABLED": "true", "PENSTOCK_TORCHSERVE__GRPC_INFERENCE_PORT": str(port)}
    with Stack(folder, models, store=redis_url) as stack:
        stack.start_worker().await_ready()
        http = stack.start_gateway(env=env)
        eventually(lambda: http.get("/ping").status_code == 200)
        yield Site(http, port, folder)


def test_the_first_piece_is_there_before_the_handler_goes_on(site: Site) -> None:
    gate = site.gate("http")
    sent = {"x-tenant": "blue", "x-request-id": "mine"}
    with site.http.stream("POST", "/predictions/steps", json={"gate": str(gate)}, headers=sent) as answer:
        pieces = answer.iter_text()
        assert next(pieces) == "first mine"
        assert (answer.headers["content-type"], answer.headers["x-seen"]) == ("text/plain", "blue")
        assert answer.headers["transfer-encoding"] == "chunked"
        gate.write_text("")
        assert "".join(pieces) == " last"


def test_an_error_behind_the_first_piece_cuts_the_answer(site: Site) -> None:
    gate = site.gate("raise")
    gate.write_text("raise")
    with pytest.raises(httpx2.RemoteProtocolError):
        site.http.post("/predictions/steps", json={"gate": str(gate)})


def test_each_piece_is_an_answer_over_grpc(site: Site) -> None:
    gate = site.gate("grpc")
    request = POOL.message_class(f"{PACKAGE}.PredictionsRequest")(model_name="steps", input={"data": str(gate).encode()})
    kind: Any = POOL.message_class(f"{PACKAGE}.PredictionResponse")
    with grpc.insecure_channel(f"127.0.0.1:{site.port}") as channel:
        call = channel.unary_stream(f"/{PACKAGE}.InferenceAPIsService/StreamPredictions")
        answers = call(request.SerializeToString(), metadata=(("x-request-id", "mine"),), timeout=20.0)
        assert kind.FromString(next(answers)).prediction == b"first mine"
        gate.write_text("")
        assert [kind.FromString(answer).prediction for answer in answers] == [b" last"]
        whole = channel.unary_unary(f"/{PACKAGE}.InferenceAPIsService/Predictions")
        answer = whole(request.SerializeToString(), metadata=(("x-request-id", "mine"),), timeout=20.0)
        assert kind.FromString(answer).prediction == b"first mine last"
