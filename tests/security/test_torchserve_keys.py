"""TorchServe's routes of a gateway with keys: who is served, and what a stranger learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import httpx2
import pytest

from penstock.extensions.torchserve.gateway.description import api_description
from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient
from tests.security.keyed import ALICE, BOSS, READER, REQUEST_ID, TestKey, keyed_gateway

PREDICTIONS = [
    path.format(model_name="square", model_version="1")
    for path, item in api_description("1")["paths"].items()
    if "post" in item
]


GRPC = {"inference": free_port(), "management": free_port()}


@pytest.fixture(scope="module")
def torchserve(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    ports = {f"PENSTOCK_TORCHSERVE__GRPC_{name.upper()}_PORT": str(port) for name, port in GRPC.items()}
    env = {"PENSTOCK_TORCHSERVE__ENABLED": "true", **ports}
    with keyed_gateway(redis_url, tmp_path_factory.mktemp("torchserve"), env=env) as client:
        yield client


def asked(client: httpx2.Client, method: str, path: str, headers: dict[str, str] | None = None) -> httpx2.Response:
    return client.request(method, path, headers={"x-request-id": REQUEST_ID, **(headers or {})})


@pytest.mark.parametrize("path", [*PREDICTIONS, "/predictions/nobody", "/predictions", "/models", "/nobody/predict"])
def test_a_stranger_gets_the_same_refusal_wherever_it_asks(torchserve: GatewayClient, strange_address: str, path: str) -> None:
    transport = httpx2.HTTPTransport(local_address=strange_address, verify=False)
    with httpx2.Client(base_url=torchserve.base_url, transport=transport) as stranger:
        for method in ("GET", "POST", "OPTIONS"):
            answer = asked(stranger, method, path)
            assert answer.status_code == 401
            assert 'Bearer realm="penstock"' in answer.headers["www-authenticate"]
            # The second protocol of KServe is the Open Inference Protocol, whose words are its own until the key is known.
            assert path.startswith("/v2") or answer.json()["type"] == "InvalidKeyException"


@pytest.mark.parametrize("path", PREDICTIONS)
def test_a_key_that_may_not_submit_predicts_by_no_method(torchserve: GatewayClient, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = asked(torchserve, method, path, READER.header)
        # The Open Inference Protocol keeps its own words for models that speak it.
        assert answer.status_code in ({403} if not path.startswith("/v2") else {403, 404, 405}), method
        assert READER.secret not in answer.text


def test_probes_and_the_description_need_no_key_and_name_no_model(torchserve: GatewayClient) -> None:
    for method, path in (("GET", "/ping"), ("POST", "/ping/"), ("GET", "/api-description"), ("OPTIONS", "/")):
        answer = asked(torchserve, method, path)
        assert answer.status_code in (200, 500)
        assert "square" not in answer.text


def test_a_key_that_may_submit_is_served(torchserve: GatewayClient) -> None:
    answer = asked(torchserve, "POST", "/predictions/square", {**ALICE.header, "content-type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "BadRequestException")


@pytest.mark.parametrize(
    ("port", "method", "key", "code"),
    [
        ("inference", "Predictions", None, "UNAUTHENTICATED"),
        ("inference", "StreamPredictions", None, "UNAUTHENTICATED"),
        ("inference", "StreamPredictions2", None, "UNAUTHENTICATED"),
        ("inference", "Ping", None, "OK"),
        ("inference", "Predictions", READER, "PERMISSION_DENIED"),
        ("inference", "Predictions", ALICE, "INVALID_ARGUMENT"),
        ("management", "ListModels", None, "UNAUTHENTICATED"),
        ("management", "RegisterModel", ALICE, "PERMISSION_DENIED"),
        ("management", "ScaleWorker", ALICE, "PERMISSION_DENIED"),
        ("management", "UnregisterModel", ALICE, "PERMISSION_DENIED"),
        ("management", "ListModels", BOSS, "OK"),
    ],
)
def test_calls_over_grpc_need_the_roles_of_http(
    torchserve: GatewayClient, port: str, method: str, key: TestKey | None, code: str
) -> None:
    grpc = pytest.importorskip("grpc")
    service = f"org.pytorch.serve.grpc.{port}.{port.title()}APIsService"
    metadata = tuple(key.header.items()) if key else ()
    with grpc.insecure_channel(f"127.0.0.1:{GRPC[port]}") as channel:
        call = channel.stream_stream(f"/{service}/{method}")(iter([b""]), metadata=metadata, timeout=20.0)
        with suppress(grpc.RpcError):
            list(call)
        assert call.code().name == code
