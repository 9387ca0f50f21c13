"""TorchServe's gRPC services of a real gateway, called with clients that are made from its .proto files at test time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("grpc")
import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from penstock.gateway.rpc.pool import MessagePool
from penstock.inputs.form import decode_form
from penstock.inputs.request import decode_request
from penstock.job import FORM_MEDIA
from penstock.loadtest.stack import free_port
from penstock.model_spec import VersionInfo
from penstock.outputs.response_head import PREDICTION_EXCEPTION, ResponseHead, prediction_message, with_head
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually

INFERENCE, MANAGEMENT = "org.pytorch.serve.grpc.inference", "org.pytorch.serve.grpc.management"
POOL = MessagePool("penstock.extensions.torchserve.grpc", "torchserve.binpb")
RAW = ("*/*", "multipart/form-data")
MODELS = {
    "square": {"source": "square.py:Square"},
    "raw": {"source": "raw.py:Raw", "request_headers": ["*"]},
    "flow": {"source": "raw.py:Flow", "request_headers": ["*"]},
    "idle": {"source": "idle.py:Idle"},
}


class Stub:
    """A client of one service: its methods by name, from the descriptors."""

    def __init__(self, port: int, service: str) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._service = POOL.descriptors.FindServiceByName(service)
        self._name = service

    def __getattr__(self, name: str) -> Any:
        method = self._service.methods_by_name[name]
        kinds = {(False, False): "unary_unary", (False, True): "unary_stream", (True, True): "stream_stream"}
        made = getattr(self.channel, kinds[method.client_streaming, method.server_streaming])
        return made(
            f"/{self._name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=POOL.message_class(method.output_type.full_name).FromString,
        )


def request(model: str = "raw", **fields: Any) -> Any:
    version, sequence = fields.pop("version", ""), fields.pop("sequence", None)
    kind = POOL.message_class(f"{INFERENCE}.PredictionsRequest")
    made = kind(model_name=model, model_version=version, input=fields)
    if sequence is not None:
        made.sequence_id = sequence
    return made


def manage(name: str, **members: Any) -> Any:
    return POOL.message_class(f"{MANAGEMENT}.{name}Request")(**members)


class Ports:
    def __init__(self, http: GatewayClient, inference: int, management: int) -> None:
        self.http = http
        self.inference = Stub(inference, f"{INFERENCE}.InferenceAPIsService")
        self.management = Stub(management, f"{MANAGEMENT}.ManagementAPIsService")


@pytest.fixture(scope="module")
def ports(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    inference, management = free_port(), free_port()
    env = {
        "PENSTOCK_TORCHSERVE__ENABLED": "true",
        "PENSTOCK_TORCHSERVE__METRICS": "true",
        "PENSTOCK_TORCHSERVE__GRPC_INFERENCE_PORT": str(inference),
        "PENSTOCK_TORCHSERVE__GRPC_MANAGEMENT_PORT": str(management),
    }
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS, env=env) as http:
        found = Ports(http, inference, management)
        with found.inference.channel, found.management.channel:
            yield found


def announced(redis_url: str, ports: Ports, model: str, info: VersionInfo | None = None) -> Hand:
    hand = Hand(redis_url, model)
    hand.announce(info)
    for job in hand.claim().jobs:
        hand.finish(job)
    eventually(lambda: ports.http.get(f"/v1/models/{model}").json()["ready"])
    return hand


@pytest.fixture
def raw(redis_url: str, ports: Ports) -> Hand:
    return announced(redis_url, ports, "raw", VersionInfo(accepts=RAW))


@pytest.fixture
def flow(redis_url: str, ports: Ports) -> Hand:
    return announced(redis_url, ports, "flow", VersionInfo(accepts=RAW, streams=True))


@pytest.fixture
def square(redis_url: str, ports: Ports) -> Hand:
    return announced(redis_url, ports, "square")


def asked(call: Any, *args: Any, **more: Any) -> Future[Any]:
    """A call that waits for its answer while the test is the worker."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(lambda: call(*args, timeout=20.0, **more))
    finally:
        pool.shutdown(wait=False)


def refusal(call: Any, message: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call(message, timeout=20.0)
    error: Any = refused.value
    return error.code(), error.details()


def test_ping_answers_what_http_answers(ports: Ports) -> None:
    empty = POOL.message_class("google.protobuf.Empty")
    # Some models of this test have no worker.
    assert ports.inference.Ping(empty(), timeout=20.0).health == '{\n  "status": "Unhealthy"\n}\n'


def test_the_fields_of_a_request_are_the_handlers_row(ports: Ports, raw: Hand) -> None:
    metadata = (("x-tenant", "blue"), ("authorization", "Bearer x"))
    call = asked(ports.inference.Predictions, request(data=b"hello", more=b"\xff"), metadata=metadata)
    job = raw.take()
    raw.finish(job, b"said", media=with_head("text/plain; charset=utf-8", ResponseHead(422, "Bad", untyped=True)))
    # A status that the handler sets is none of gRPC's, as there.
    assert (call.result().prediction, call.result().HasField("sequence_id")) == (b"said", False)
    found = decode_request(job.input.data)
    assert found.content_type == FORM_MEDIA
    assert {part.name: part.data for part in decode_form(found.data)} == {"data": b"hello", "more": b"\xff"}
    assert found.headers["x-tenant"] == "blue"
    assert "authorization" not in found.headers
    assert found.headers["x-request-id"]


def test_a_model_of_our_own_is_given_fields_by_its_schema(ports: Ports, square: Hand) -> None:
    with square.serving():
        assert json.loads(ports.inference.Predictions(request("square", x=b"4"), timeout=20.0).prediction) == {"y": 16}
        assert json.loads(ports.inference.Predictions(request("square", data=b'{"x":4}'), timeout=20.0).prediction) == {"y": 16}
    code, text = refusal(ports.inference.Predictions, request("square", x=b"four"))
    assert (code, text.splitlines()[-1]) == (grpc.StatusCode.INVALID_ARGUMENT, "BadRequestException")


@pytest.mark.parametrize(
    ("failure", "message", "code", "text"),
    [
        ("handler_error", "boo", "UNAVAILABLE", "Prediction failed\nInternalServerException"),
        ("oom", "boo", "INTERNAL", "Out of resources\nInternalServerException"),
        ("timeout", "boo", "INTERNAL", "Worker died.\nInternalServerException"),
        (
            PREDICTION_EXCEPTION,
            prediction_message("bad input", 422),
            "FAILED_PRECONDITION",
            "bad input\nInternalServerException",
        ),
        (PREDICTION_EXCEPTION, prediction_message("bad input", 404), "NOT_FOUND", "bad input\nInternalServerException"),
    ],
)
def test_a_failed_job_has_torchserves_status(ports: Ports, raw: Hand, failure: str, message: str, code: str, text: str) -> None:
    call = asked(ports.inference.Predictions, request(data=b"x"))
    raw.fail(raw.take(), failure, message)
    error: Any = call.exception()
    assert (error.code().name, error.details()) == (code, text)


@pytest.mark.parametrize(
    ("asking", "code", "text"),
    [
        (request("nope", x=b""), "NOT_FOUND", "Model not found: nope\nModelNotFoundException"),
        (
            request("square", version="9", x=b""),
            "NOT_FOUND",
            "Model version: 9 does not exist for model: square\nModelVersionNotFoundException",
        ),
        (request("", x=b""), "INVALID_ARGUMENT", "Parameter model_name is required.\nBadRequestException"),
        (request("idle", x=b"4"), "UNAVAILABLE", 'Model "idle" has no worker to serve inference request.'),
    ],
)
def test_refusals_have_torchserves_words(ports: Ports, asking: Any, code: str, text: str) -> None:
    for call in (ports.inference.Predictions, lambda *args, **more: list(ports.inference.StreamPredictions(*args, **more))):
        found, details = refusal(call, asking)
        assert found.name == code
        assert details.startswith(text)


def test_each_chunk_is_an_answer_of_the_stream(ports: Ports, flow: Hand) -> None:
    call = asked(
        lambda message, timeout: list(ports.inference.StreamPredictions(message, timeout=timeout)), request("flow", x=b"")
    )
    job = flow.take()
    flow.say(job, {"$head": with_head("text/plain", ResponseHead(201, "Made"))}, "one\n", {"$bytes": "AAE="})
    flow.finish(job, b"all of it", media="text/plain")
    assert [answer.prediction for answer in call.result()] == [b"one\n", b"\x00\x01"]


def test_a_model_that_does_not_stream_gives_one_answer(ports: Ports, flow: Hand, square: Hand) -> None:
    with flow.serving(b'"whole"'), square.serving():
        for model in ("flow", "square"):
            assert len(list(ports.inference.StreamPredictions(request(model, x=b"4"), timeout=20.0))) == 1


def test_a_stream_that_its_client_leaves_cancels_its_job(ports: Ports, flow: Hand) -> None:
    answers = ports.inference.StreamPredictions(request("flow", x=b""), timeout=20.0)
    job = flow.take()
    flow.say(job, "one")
    assert next(answers).prediction == b"one"
    answers.cancel()
    eventually(lambda: ports.http.get(f"/v1/jobs/{job.id}").json()["cancel_requested"])
    flow.finish(job)


def test_a_call_that_its_client_leaves_cancels_its_job(ports: Ports, raw: Hand) -> None:
    call = ports.inference.Predictions.future(request(data=b"x"), timeout=20.0)
    job = raw.take()
    call.cancel()
    eventually(lambda: ports.http.get(f"/v1/jobs/{job.id}").json()["cancel_requested"])
    raw.finish(job)


def test_requests_of_a_stream_are_answered_in_their_order_and_fail_alone(ports: Ports, raw: Hand, square: Hand) -> None:
    with square.serving():
        asking = [request("square", x=b"4", sequence="a"), request("nope", x=b"4", sequence="b"), request("square", x=b"4")]
        answers = list(ports.inference.StreamPredictions2(iter(asking), timeout=20.0))
    assert [answer.prediction for answer in answers] == [b'{"y":16}', b"", b'{"y":16}']
    assert [answer.sequence_id for answer in answers] == ["a", "b", ""]
    assert (answers[1].status.code, answers[1].status.message) == (
        grpc.StatusCode.NOT_FOUND.value[0],
        "Model not found: nope\nModelNotFoundException",
    )
    assert not answers[0].HasField("status")


def test_management_answers_with_the_text_of_http(ports: Ports, square: Hand) -> None:
    listed = json.loads(ports.management.ListModels(manage("ListModels", limit=1), timeout=20.0).msg)
    assert listed == ports.http.get("/models?limit=1").json()
    described = json.loads(ports.management.DescribeModel(manage("DescribeModel", model_name="square"), timeout=20.0).msg)
    assert list(described[0])[:4] == ["modelName", "modelVersion", "modelUrl", "runtime"]
    answer = ports.management.SetDefault(manage("SetDefault", model_name="square", model_version="1"), timeout=20.0)
    assert answer.msg == 'Default version successfully updated for model "square" to "1"'
    answer = ports.management.ScaleWorker(manage("ScaleWorker", model_name="square", min_worker=1), timeout=20.0)
    assert answer.msg == "Processing worker updates..."
    acts = ports.http.get("/v1/audit?limit=2").json()["data"]
    assert [(act["act"], act["on"], act["outcome"], act["address"]) for act in acts] == [
        ("torchserve scale", {"model": "square"}, "done", "127.0.0.1"),
        ("torchserve set-default", {"model": "square", "version": "1"}, "done", "127.0.0.1"),
    ]


@pytest.mark.parametrize(
    ("method", "members", "code", "text"),
    [
        ("DescribeModel", {"model_name": "nope"}, "NOT_FOUND", "Model not found: nope\nModelNotFoundException"),
        ("ScaleWorker", {"model_name": "nope"}, "NOT_FOUND", "Model not found: nope\nModelNotFoundException"),
        (
            "SetDefault",
            {"model_name": "square", "model_version": "7"},
            "NOT_FOUND",
            "Model version 7 does not exist for model square\nModelVersionNotFoundException",
        ),
        ("RegisterModel", {"url": "a.mar"}, "PERMISSION_DENIED", "Requested method is not allowed"),
        ("UnregisterModel", {"model_name": "square"}, "PERMISSION_DENIED", "Requested method is not allowed"),
        (
            "ScaleWorker",
            {"model_name": "square", "min_worker": 3, "max_worker": 2},
            "INVALID_ARGUMENT",
            "max_worker cannot be less than min_worker.\nBadRequestException",
        ),
    ],
)
def test_management_refuses_in_torchserves_words(
    ports: Ports, method: str, members: dict[str, Any], code: str, text: str
) -> None:
    found, details = refusal(getattr(ports.management, method), manage(method, **members))
    assert found.name == code
    assert details.startswith(text)


def test_what_is_no_message_is_refused(ports: Ports) -> None:
    call = ports.inference.channel.unary_unary(f"/{INFERENCE}.InferenceAPIsService/Predictions")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"\xff", timeout=20.0)
    error: Any = refused.value
    assert (error.code(), "are no PredictionsRequest" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize(
    ("port", "service"),
    [("inference", f"{INFERENCE}.InferenceAPIsService"), ("management", f"{MANAGEMENT}.ManagementAPIsService")],
)
def test_each_port_has_health_and_reflection_of_its_own_service(ports: Ports, port: str, service: str) -> None:
    channel = getattr(ports, port).channel
    asked_for = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    answer = channel.unary_unary("/grpc.health.v1.Health/Check")(asked_for)
    assert health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.NOT_SERVING
    ask = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    answers = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(iter([ask]))
    found = reflection_pb2.ServerReflectionResponse.FromString(next(answers)).list_services_response.service
    assert {one.name for one in found} == {service, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_the_gateway_counts_the_calls(ports: Ports, square: Hand) -> None:
    with square.serving():
        ports.inference.Predictions(request("square", x=b"4"), timeout=20.0)
        list(ports.inference.StreamPredictions(request("square", x=b"4"), timeout=20.0))
    text = ports.http.get("/metrics").text
    assert 'penstock_grpc_requests_total{code="OK",method="Predictions"}' in text
    counted = [line for line in text.splitlines() if 'model_name="square",model_version="default"' in line]
    assert {line.partition("{")[0] for line in counted} == {
        "ts_inference_requests_total",
        "ts_inference_latency_microseconds",
        "ts_queue_latency_microseconds",
    }
