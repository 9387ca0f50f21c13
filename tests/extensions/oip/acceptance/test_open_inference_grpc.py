"""The Open Inference Protocol over gRPC through the unmodified `tritonclient`, with real models in a real worker."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc")
import grpc
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from penstock.loadtest.stack import free_port
from tests.acceptance.grpc_call import call
from tests.eventually import eventually
from tests.extensions.oip.acceptance.oip_client import assert_loads, assert_unserved
from tests.extensions.oip.acceptance.oip_stack import oip_stack
from tests.stack import Stack

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), dtype=np.int32)


@pytest.fixture(scope="module")
def stack(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with oip_stack(redis_url, tmp_path_factory.mktemp("grpc"), grpc_port=free_port()) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Any]:
    with triton.InferenceServerClient(stack.http.grpc_address) as client:
        yield client


@pytest.fixture(scope="module")
def channel(stack: Stack) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(stack.http.grpc_address, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def tensor(name: str, array: Any) -> Any:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def both() -> list[Any]:
    return [tensor("INPUT0", FIRST), tensor("INPUT1", ONES)]


def test_the_client_learns_what_is_served(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    found = client.get_model_metadata("simple", as_json=True)
    port = {"datatype": "INT32", "shape": ["16"]}
    assert found["inputs"] == [{"name": name, **port} for name in ("INPUT0", "INPUT1")]
    assert found["outputs"] == [{"name": name, **port} for name in ("OUTPUT0", "OUTPUT1")]
    config = client.get_model_config("simple", as_json=True)["config"]
    assert config["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": ["16"]}
    assert config["dynamic_batching"]["preferred_batch_size"]


def test_the_example_of_triton_runs_with_its_batch_axis(client: Any) -> None:
    found = client.infer(
        "simple",
        both(),
        outputs=[triton.InferRequestedOutput("OUTPUT1"), triton.InferRequestedOutput("OUTPUT0")],
        request_id="7",
    )
    assert (found.as_numpy("OUTPUT0") == FIRST + ONES).all()
    assert (found.as_numpy("OUTPUT1") == FIRST - ONES).all()
    response = found.get_response()
    assert (response.id, response.model_name, response.model_version) == ("7", "simple", "1")
    assert [output.name for output in response.outputs] == ["OUTPUT1", "OUTPUT0"]


def test_requests_at_the_same_time(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    for _ in range(16):
        client.async_infer("simple", both(), callback=lambda result, error: answers.put(error or result))
    assert all((answers.get(timeout=30).as_numpy("OUTPUT0") == FIRST + ONES).all() for _ in range(16))


async def test_the_client_of_asyncio(stack: Stack) -> None:
    async with triton_aio.InferenceServerClient(stack.http.grpc_address) as client:
        assert await client.is_server_ready()
        found = await asyncio.gather(*(client.infer("simple", both()) for _ in range(4)))
        assert all((one.as_numpy("OUTPUT1") == FIRST - ONES).all() for one in found)
        with pytest.raises(InferenceServerException, match="no model is named"):
            await client.infer("nobody", both())


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
def test_every_datatype_keeps_its_bytes(client: Any, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = client.infer("mirror", [tensor("x", array)]).as_numpy("x")
    assert found.dtype == array.dtype
    assert (found == array).all()


def test_bfloat16_texts_and_empty_tensors(client: Any) -> None:
    halves = triton.InferInput("x", [2], "BF16")
    halves.set_data_from_numpy(np.array([1.5, -2.0], ml_dtypes.bfloat16))
    assert client.infer("mirror", [halves]).as_numpy("x").tolist() == [1.5, -2.0]
    texts = np.array(["a", "", "äö"], dtype=object)
    assert [text.decode() for text in client.infer("mirror", [tensor("x", texts)]).as_numpy("x")] == ["a", "", "äö"]
    assert client.infer("mirror", [tensor("x", np.zeros((0, 3), np.float32))]).as_numpy("x").shape == (0, 3)


def typed(datatype: str, shape: list[int], **contents: list[Any]) -> Any:
    request = service_pb2.ModelInferRequest(model_name="mirror", id="t")
    given = request.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, elements in contents.items():
        getattr(given.contents, name).extend(elements)
    return request


@pytest.mark.parametrize(
    ("datatype", "field", "elements", "data"),
    [
        ("BOOL", "bool_contents", [True, False], b"\1\0"),
        ("INT8", "int_contents", [-1, 2], b"\xff\2"),
        ("INT64", "int64_contents", [-1], b"\xff" * 8),
        ("UINT16", "uint_contents", [1, 65_535], b"\1\0\xff\xff"),
        ("UINT64", "uint64_contents", [1 << 63], bytes(7) + b"\x80"),
        ("FP32", "fp32_contents", [1.5], np.float32(1.5).tobytes()),
        ("FP64", "fp64_contents", [float("nan")], np.float64("nan").tobytes()),
        ("BYTES", "bytes_contents", [b"ab", b""], b"\2\0\0\0ab\0\0\0\0"),
    ],
)
def test_elements_may_stand_in_the_message_one_by_one(
    channel: grpc.Channel, datatype: str, field: str, elements: list[Any], data: bytes
) -> None:
    request = typed(datatype, [len(elements)], **{field: elements})
    answer = service_pb2.ModelInferResponse.FromString(call(channel, "ModelInfer", request.SerializeToString()))
    assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == (datatype, [len(elements)])
    assert answer.raw_output_contents[0] == data


def test_tensors_are_the_fields_of_a_typed_model(client: Any) -> None:
    texts = [tensor("text", np.array(["Hello"], object)), tensor("words", np.array(["a", "b"], object))]
    found = client.infer("counted", [*texts, tensor("weight", np.array([2.5], np.float32))])
    assert found.as_numpy("letters").tolist() == [5]
    assert found.as_numpy("upper").tolist() == [b"A", b"B"]
    assert json.loads(found.as_numpy("more")[0]) == {"a": None}
    assert found.get_output("more").parameters["content_type"].string_param == "application/json"


def test_parameters_are_priority_time_and_those_of_the_model(client: Any) -> None:
    given = [tensor("input", np.array([3], np.int64))]
    found = client.infer("scaled", given, priority=2, timeout=20_000_000, parameters={"unit": "m"})
    assert [found.as_numpy(name).tolist() for name in ("value", "unit", "priority")] == [[3], [b"m"], [b"bulk"]]
    with pytest.raises(InferenceServerException, match="takes no parameter 'colour'"):
        client.infer("scaled", given, parameters={"colour": "red"})
    with pytest.raises(InferenceServerException, match="sequences are not served"):
        client.infer("scaled", given, sequence_id=5, sequence_start=True)


def test_a_deadline_of_the_protocol_ends_the_job(client: Any) -> None:
    with pytest.raises(InferenceServerException) as late:
        client.infer("slow", [tensor("input", np.array([1.5]))], timeout=200_000)
    assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_messages_may_be_compressed(client: Any, algorithm: str) -> None:
    large = np.zeros(200_000, np.float32)
    assert (client.infer("mirror", [tensor("x", large)], compression_algorithm=algorithm).as_numpy("x") == large).all()


def test_four_megabytes_pass(client: Any) -> None:
    large = np.random.default_rng(1).random(1 << 19)
    assert (client.infer("mirror", [tensor("x", large)]).as_numpy("x") == large).all()


def test_the_repository_lists_and_loads(client: Any) -> None:
    rows = {(row.name, row.version): row.state for row in client.get_model_repository_index().models}
    assert rows["simple", "1"] == "READY"
    assert_loads(client)


def test_what_penstock_has_not_is_refused_by_name(client: Any) -> None:
    assert_unserved(client, "StatusCode.UNIMPLEMENTED")


def streamed(stack: Stack, requests: list[tuple[str, list[Any], dict[str, Any]]], answers: int) -> list[Any]:
    """The answers of one stream, each a result or an error."""
    told: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(stack.http.grpc_address) as client:
        client.start_stream(callback=lambda result, error: told.put(error or result))
        for model, inputs, more in requests:
            client.async_stream_infer(model, inputs, **more)
        return [told.get(timeout=30) for _ in range(answers)]


def test_a_stream_answers_in_the_order_of_its_requests(stack: Stack) -> None:
    slow = [("slow", [tensor("input", np.array([0.2]))], {"request_id": "slow"})]
    quick = [("square", [tensor("x", np.array([n], np.int64))], {"request_id": str(n)}) for n in range(20)]
    bad = [("nobody", [tensor("x", np.array([1], np.int64))], {"request_id": "bad"})]
    found = streamed(stack, [*slow, *quick, *bad, *quick[:1]], 23)
    ids = [one.get_response().id for one in found if not isinstance(one, InferenceServerException)]
    assert ids == ["slow", *map(str, range(20)), "0"]
    assert [one.as_numpy("y").tolist() for one in found[1:21]] == [[n * n] for n in range(20)]
    # A refused request ends neither the stream nor its neighbours.
    assert "no model is named 'nobody'" in str(found[21])


def test_a_model_that_streams_has_an_answer_per_chunk(stack: Stack) -> None:
    count = [("told", [tensor("input", np.array([3], np.int64))], {"enable_empty_final_response": True})]
    found = [one.get_response() for one in streamed(stack, count, 4)]
    assert [one.raw_output_contents[0] for one in found[:3]] == [n.to_bytes(8, "little") for n in range(3)]
    assert [one.parameters["triton_final_response"].bool_param for one in found] == [False, False, False, True]
    assert not found[3].outputs
    # Without that parameter, only the chunks come: the next answer is that of the next request.
    after: tuple[str, list[Any], dict[str, Any]] = ("square", [tensor("x", np.array([9], np.int64))], {})
    plain = [one.get_response() for one in streamed(stack, [(*count[0][:2], {}), after], 4)]
    assert [next(iter(one.outputs)).name for one in plain] == ["output", "output", "output", "y"]
    assert "triton_final_response" not in plain[0].parameters


def test_a_stream_that_is_left_cancels_its_jobs(stack: Stack) -> None:
    with triton.InferenceServerClient(stack.http.grpc_address) as client:
        client.start_stream(callback=lambda result, error: None)
        client.async_stream_infer("slow", [tensor("input", np.array([3.0]))])
        job = eventually(lambda: newest(stack, "slow", "running"))
        client.stop_stream(cancel_requests=True)
    eventually(lambda: stack.http.get(f"/v1/jobs/{job}").json()["status"] == "cancelled")


def newest(stack: Stack, model: str, status: str) -> str:
    """The id of the newest job in that state; empty without one."""
    found = stack.http.get("/v1/jobs", params={"model": model, "status": status, "limit": 1}).json()["data"]
    return found[0]["id"] if found else ""


def test_a_call_that_is_cancelled_cancels_its_job(client: Any, stack: Stack) -> None:
    context = client.async_infer("slow", [tensor("input", np.array([3.0]))], callback=lambda result, error: None)
    job = eventually(lambda: newest(stack, "slow", "running"))
    context.cancel()
    eventually(lambda: stack.http.get(f"/v1/jobs/{job}").json()["status"] == "cancelled")


def test_the_deadline_of_a_call_is_that_of_its_job(client: Any, stack: Stack) -> None:
    before = time.time()
    with pytest.raises(InferenceServerException) as late:
        client.infer("slow", [tensor("input", np.array([3.0]))], client_timeout=0.3)
    assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    (found,) = stack.http.get("/v1/jobs", params={"model": "slow", "limit": 1}).json()["data"]
    job = stack.http.get(f"/v1/jobs/{found['id']}").json()
    assert job["deadline_at"] < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before + 2.0))
    eventually(lambda: stack.http.get(f"/v1/jobs/{found['id']}").json()["status"] in ("cancelled", "expired"))


def test_the_job_of_a_call_is_a_job_as_any_other(channel: grpc.Channel, stack: Stack) -> None:
    request = typed("INT64", [1], int64_contents=[4])
    request.model_name = "square"
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    metadata = (("idempotency-key", "grpc-first"), ("traceparent", trace))
    jobs = set()
    for _ in range(2):
        answer = call(channel, "ModelInfer", request.SerializeToString(), metadata=metadata)
        jobs.add(service_pb2.ModelInferResponse.FromString(answer).parameters["job"].string_param)
    (job,) = jobs
    assert stack.http.get(f"/v1/jobs/{job}/result").json() == {"y": [16]}
    assert "0af7651916cd43dd8448eb211c80319c" in stack.http.get(f"/v1/jobs/{job}/result").headers.get("traceparent", trace)


BAD = [
    (b"\xff\xff", "INVALID_ARGUMENT", "no ModelInferRequest"),
    (b"\x3a\x7fab", "INVALID_ARGUMENT", "ends within a field"),
    (b"\x3b", "INVALID_ARGUMENT", "a field of an unknown kind"),
    (b"\x80" * 12, "INVALID_ARGUMENT", "ends within a number"),
    (b"\x3a\x00" * 3_000, "INVALID_ARGUMENT", "more than"),
    ({}, "INVALID_ARGUMENT", "1 to 256 inputs"),
    ({"datatype": "FLOAT"}, "INVALID_ARGUMENT", "must be BOOL"),
    ({"shape": [2]}, "INVALID_ARGUMENT", "takes 16 bytes, and its data has 8"),
    ({"shape": [-1]}, "INVALID_ARGUMENT", "none of them negative"),
    ({"shape": [1 << 40, 1 << 40]}, "INVALID_ARGUMENT", "too large"),
    ({"shape": [1_000_000_000, 0], "raw": [b""]}, "INVALID_ARGUMENT", "too large"),
    ({"raw": [bytes(8), bytes(8)]}, "INVALID_ARGUMENT", "1 of the 2 raw_input_contents belong to no tensor"),
    ({"raw": [b"1234567"]}, "INVALID_ARGUMENT", "takes 8 bytes, and its data has 7"),
    ({"datatype": "BYTES", "raw": [b"\xff" * 8]}, "INVALID_ARGUMENT", "longer than the rest"),
    ({"raw": []}, "INVALID_ARGUMENT", "has 0 elements in int64_contents"),
    ({"datatype": "FP16", "raw": []}, "INVALID_ARGUMENT", "has no typed contents"),
    ({"name": "z"}, "INVALID_ARGUMENT", "no input 'z'; it has x"),
    ({"output": "z"}, "INVALID_ARGUMENT", "no output 'z'; it has y"),
    ({"model": "nobody"}, "NOT_FOUND", "no model is named 'nobody'"),
    ({"version": "9"}, "NOT_FOUND", "9"),
    ({"parameters": {"priority": -1}}, "INVALID_ARGUMENT", "priority must be a whole number"),
    ({"parameters": {"shared_memory_region": 1}}, "INVALID_ARGUMENT", "takes no parameter"),
    ({"twice": True}, "INVALID_ARGUMENT", "two tensors are named"),
]


def bad_message(change: dict[str, Any]) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=change.get("model", "square"), model_version=change.get("version", ""))
    if change:
        for _ in range(1 + change.get("twice", False)):
            request.inputs.add(
                name=change.get("name", "x"), datatype=change.get("datatype", "INT64"), shape=change.get("shape", [1])
            )
        raw = [(4).to_bytes(8, "little")] * len(request.inputs)
        request.raw_input_contents.extend(change.get("raw", raw))
    if "output" in change:
        request.outputs.add(name=change["output"])
    for name, value in change.get("parameters", {}).items():
        request.parameters[name].int64_param = value
    made: bytes = request.SerializeToString()
    return made


@pytest.mark.parametrize(("message", "code", "reason"), BAD)
def test_bad_requests_are_refused_with_the_reason(
    channel: grpc.Channel, message: bytes | dict[str, Any], code: str, reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(channel, "ModelInfer", message if isinstance(message, bytes) else bad_message(message))
    assert (refused.value.code().name, reason in refused.value.details()) == (code, True), refused.value
    metadata = dict(refused.value.trailing_metadata())
    assert {"x-request-id", "grpc-status-details-bin"} <= metadata.keys()


def test_several_items_in_one_request_are_refused_and_told_what_to_do(client: Any) -> None:
    two = np.zeros((2, 16), np.int32)
    with pytest.raises(InferenceServerException, match=r"holds 2 items.*Send the items as requests"):
        client.infer("simple", [tensor("INPUT0", two), tensor("INPUT1", two)])


def test_health_and_reflection(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "inference.GRPCInferenceService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as unknown:
        health.Check(health_pb2.HealthCheckRequest(service="other"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    known = ProtoReflectionDescriptorDatabase(channel)
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(known.get_services())
    file = known.FindFileContainingSymbol("inference.GRPCInferenceService")
    assert "ModelStreamInfer" in {method.name for method in file.service[0].method}


def test_calls_are_counted(channel: grpc.Channel, stack: Stack) -> None:
    call(channel, "ServerLive")
    metrics = stack.http.get("/metrics").text
    assert 'penstock_grpc_requests_total{code="OK",method="ServerLive"}' in metrics
    assert 'penstock_grpc_requests_total{code="INVALID_ARGUMENT",method="ModelInfer"}' in metrics
