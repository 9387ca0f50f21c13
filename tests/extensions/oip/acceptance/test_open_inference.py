"""The Open Inference Protocol over HTTP through the unmodified `tritonclient`, with real models in a real worker."""

from __future__ import annotations

import asyncio
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tritonclient.http")
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.acceptance.gateway_process import GatewayClient
from tests.extensions.oip.acceptance.oip_client import assert_loads, assert_unserved
from tests.extensions.oip.acceptance.oip_stack import oip_stack

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), dtype=np.int32)
HEADER = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with oip_stack(redis_url, tmp_path_factory.mktemp("oip")) as stack:
        yield stack.http


@pytest.fixture(scope="module")
def client(gateway: GatewayClient) -> Iterator[Any]:
    with triton.InferenceServerClient(str(gateway.base_url).removeprefix("http://").rstrip("/")) as client:
        yield client


def tensor(name: str, array: Any, *, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def both(*, binary: bool = True) -> list[Any]:
    return [tensor("INPUT0", FIRST, binary=binary), tensor("INPUT1", ONES, binary=binary)]


def test_the_client_learns_what_is_served(client: Any, gateway: GatewayClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    found = client.get_model_metadata("simple")
    port = {"datatype": "INT32", "shape": [16]}
    assert found["inputs"] == [{"name": name, **port} for name in ("INPUT0", "INPUT1")]
    assert found["outputs"] == [{"name": name, **port} for name in ("OUTPUT0", "OUTPUT1")]
    assert client.get_model_config("simple")["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [16]}
    assert client.get_model_metadata("counted")["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [1]},
        {"name": "words", "datatype": "BYTES", "shape": [-1]},
        {"name": "weight", "datatype": "FP64", "shape": [1]},
    ]


def test_the_example_of_triton_runs_with_its_batch_axis(client: Any) -> None:
    wanted = [
        triton.InferRequestedOutput("OUTPUT0", binary_data=True),
        triton.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    for given in (both(), both(binary=False), [tensor("INPUT0", FIRST), tensor("INPUT1", ONES, binary=False)]):
        found = client.infer("simple", given, outputs=wanted, request_id="7")
        assert (found.as_numpy("OUTPUT0") == FIRST + ONES).all()
        assert (found.as_numpy("OUTPUT1") == FIRST - ONES).all()
        assert found.as_numpy("OUTPUT0").dtype == np.int32
        response = found.get_response()
        assert (response["id"], response["model_name"], response["model_version"]) == ("7", "simple", "1")


def test_without_its_batch_axis_an_item_is_the_same(client: Any) -> None:
    found = client.infer("simple", [tensor("INPUT0", FIRST[0]), tensor("INPUT1", ONES[0])], model_version="1")
    assert (found.as_numpy("OUTPUT0") == (FIRST + ONES)[0]).all()


def test_requests_at_the_same_time(client: Any, gateway: GatewayClient) -> None:
    address = str(gateway.base_url).removeprefix("http://").rstrip("/")
    with triton.InferenceServerClient(address, concurrency=8) as parallel:
        asked = [parallel.async_infer("simple", both()) for _ in range(16)]
        assert all((one.get_result().as_numpy("OUTPUT0") == FIRST + ONES).all() for one in asked)


async def test_the_client_of_asyncio(gateway: GatewayClient) -> None:
    async with triton_aio.InferenceServerClient(str(gateway.base_url).removeprefix("http://").rstrip("/")) as client:
        found = await asyncio.gather(*(client.infer("simple", both()) for _ in range(4)))
        assert all((one.as_numpy("OUTPUT1") == FIRST - ONES).all() for one in found)
        with pytest.raises(InferenceServerException, match="no model is named"):
            await client.infer("nobody", both())


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
def test_every_datatype_keeps_its_bytes(client: Any, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = client.infer("mirror", [tensor("x", array)])
    assert found.as_numpy("x").dtype == array.dtype
    assert (found.as_numpy("x") == array).all()
    if dtype != "float16":
        wanted = [triton.InferRequestedOutput("x", binary_data=False)]
        assert (client.infer("mirror", [tensor("x", array, binary=False)], outputs=wanted).as_numpy("x") == array).all()


def test_bfloat16_texts_and_empty_tensors(client: Any) -> None:
    halves = triton.InferInput("x", [2], "BF16")
    halves.set_data_from_numpy(np.array([1.5, -2.0], ml_dtypes.bfloat16))
    assert client.infer("mirror", [halves]).as_numpy("x").tolist() == [1.5, -2.0]
    for binary in (True, False):
        texts = np.array(["a", "", "äö"], dtype=object)
        found = client.infer(
            "mirror", [tensor("x", texts, binary=binary)], outputs=[triton.InferRequestedOutput("x", binary_data=binary)]
        )
        assert [text if isinstance(text, str) else text.decode() for text in found.as_numpy("x")] == ["a", "", "äö"]
    assert client.infer("mirror", [tensor("x", np.zeros((0, 3), np.float32))]).as_numpy("x").shape == (0, 3)


def test_tensors_are_the_fields_of_a_typed_model(client: Any) -> None:
    texts = [tensor("text", np.array(["Hello"], object)), tensor("words", np.array(["a", "b"], object))]
    found = client.infer("counted", [*texts, tensor("weight", np.array([2.5], np.float32))])
    assert found.as_numpy("letters").tolist() == [5]
    assert found.as_numpy("upper").tolist() == [b"A", b"B"]
    assert found.as_numpy("weight").tolist() == [2.5]
    # What no tensor holds is its JSON.
    assert json.loads(found.as_numpy("more")[0]) == {"a": None}
    assert client.infer("square", [tensor("x", np.array([4], np.int64))]).as_numpy("y").tolist() == [16]


def test_a_model_of_bytes_takes_one_element(client: Any, gateway: GatewayClient) -> None:
    found = client.infer("measured", [tensor("input", np.array([b"\x00\x01\x02"], object))])
    assert found.as_numpy("length").tolist() == [3]


def test_parameters_are_priority_time_and_those_of_the_model(client: Any) -> None:
    given = [tensor("input", np.array([3], np.int64))]
    found = client.infer("scaled", given, priority=2, timeout=20_000_000, parameters={"unit": "m"})
    assert [found.as_numpy(name).tolist() for name in ("value", "unit", "priority")] == [[3], [b"m"], [b"bulk"]]
    with pytest.raises(InferenceServerException, match="takes no parameter 'colour'"):
        client.infer("scaled", given, parameters={"colour": "red"})
    with pytest.raises(InferenceServerException, match="sequences are not served"):
        client.infer("scaled", given, sequence_id=5, sequence_start=True)


def test_a_request_that_takes_too_long_is_told_so(client: Any) -> None:
    with pytest.raises(InferenceServerException) as late:
        client.infer("slow", [tensor("input", np.array([1.5]))], timeout=200_000)
    assert late.value.status() == "504"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(client: Any, algorithm: str) -> None:
    large = np.zeros(200_000, np.float32)
    found = client.infer(
        "mirror", [tensor("x", large)], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    assert (found.as_numpy("x") == large).all()


def test_the_repository_lists_and_loads(client: Any) -> None:
    rows = {(row["name"], row["version"]): row["state"] for row in client.get_model_repository_index()}
    assert rows["simple", "1"] == "READY"
    assert_loads(client)


def test_what_penstock_has_not_is_refused_by_name(client: Any) -> None:
    assert_unserved(client, "501")


def infer(gateway: GatewayClient, model: str, content: bytes, **headers: str) -> httpx2.Response:
    return gateway.post(f"/v2/models/{model}/infer", content=content, headers=headers)


def asked(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


X = {"name": "x", "shape": [1], "datatype": "INT64", "data": [4]}
RAW = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}
BAD = [
    (b"", None, 400, "not valid JSON"),
    (b"[]", None, 400, "no inference request"),
    (asked(), None, 400, "1 to 256 inputs"),
    (asked(X, model_name="other"), None, 400, "the path names the model 'square'"),
    (asked({**X, "datatype": "FLOAT"}), None, 422, "must be BOOL"),
    (asked({**X, "shape": [2]}), None, 400, "has 1 elements, and the shape [2] 2"),
    (asked({**X, "shape": [-1]}), None, 422, "none of them negative"),
    (asked({**X, "shape": [1 << 40, 1 << 40]}), None, 422, "too large"),
    (asked({**X, "shape": [1_000_000_000, 0], "data": []}), None, 422, "too large"),
    (asked({**X, "data": ["a"]}), None, 422, "holds something else"),
    (asked({**X, "data": [1 << 63]}), None, 422, "holds something else"),
    (asked({**X, "datatype": "FP16"}), None, 400, "no form in JSON"),
    (asked(X, X), None, 422, "two tensors are named"),
    (asked({**X, "name": "z"}), None, 422, "no input 'z'; it has x"),
    (asked(X, outputs=[{"name": "z"}]), None, 422, "no output 'z'; it has y"),
    (asked(X, parameters={"priority": -1}), None, 400, "priority must be a whole number"),
    (asked({**X, "parameters": {"shared_memory_region": "a"}}), None, 400, "shared memory is not served"),
    (asked(RAW) + bytes(24), 9_999, 400, "the body has"),
    (asked(RAW) + bytes(23), None, 400, "not valid JSON"),
    (asked(RAW) + bytes(23), len(asked(RAW)), 400, "has 24 bytes, and 23 are left"),
    (asked(RAW) + bytes(25), len(asked(RAW)), 400, "1 bytes of the body belong to no tensor"),
    (asked({**RAW, "shape": [2, 4]}) + bytes(24), len(asked({**RAW, "shape": [2, 4]})), 422, "takes 32 bytes"),
    (asked({**RAW, "datatype": "BYTES"}) + b"\xff" * 24, len(asked({**RAW, "datatype": "BYTES"})), 422, "longer than the rest"),
    (asked({**RAW, "datatype": "BYTES"}) + bytes(24), len(asked({**RAW, "datatype": "BYTES"})), None, ""),
]


@pytest.mark.parametrize(("content", "length", "status", "reason"), BAD)
def test_bad_requests_are_refused_with_the_reason(
    gateway: GatewayClient, content: bytes, length: int | None, status: int | None, reason: str
) -> None:
    answer = infer(gateway, "square", content, **({} if length is None else {HEADER: str(length)}))
    assert 400 <= answer.status_code < 500
    assert status in (None, answer.status_code), answer.text
    assert reason in answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"


def test_several_items_in_one_request_are_refused_and_told_what_to_do(client: Any) -> None:
    two = np.zeros((2, 16), np.int32)
    with pytest.raises(InferenceServerException, match=r"holds 2 items.*Send the items as requests"):
        client.infer("simple", [tensor("INPUT0", two), tensor("INPUT1", two)])


def test_a_raw_body_is_the_one_input(gateway: GatewayClient) -> None:
    answer = infer(gateway, "square", (5).to_bytes(8, "little"), **{HEADER: "0"})
    assert answer.status_code == 200
    assert answer.content.endswith((25).to_bytes(8, "little"))
    assert "0: the body is the one input" in infer(gateway, "simple", b"1234", **{HEADER: "0"}).json()["error"]


def test_a_gzip_bomb_is_cut_off(gateway: GatewayClient) -> None:
    bomb = zlib.compress(bytes(512 * 1024 * 1024), 9)
    assert len(bomb) < 1024 * 1024
    answer = infer(gateway, "square", bomb, **{"content-encoding": "deflate"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert infer(gateway, "square", b"no gzip", **{"content-encoding": "gzip"}).status_code == 400
    assert infer(gateway, "square", zlib.compress(asked(X))[:-3], **{"content-encoding": "deflate"}).status_code == 400
    assert infer(gateway, "square", b"", **{"content-encoding": "br"}).status_code == 415


def test_the_job_of_a_request_is_a_job_as_any_other(gateway: GatewayClient) -> None:
    answer = infer(gateway, "square", asked(X), **{"idempotency-key": "the-first"})
    job = answer.headers["x-penstock-job"]
    assert infer(gateway, "square", asked(X), **{"idempotency-key": "the-first"}).headers["x-penstock-job"] == job
    assert gateway.get(f"/v1/jobs/{job}").json()["status"] == "succeeded"
    assert gateway.get(f"/v1/jobs/{job}/result").json() == {"y": [16]}
    file = gateway.get(f"/v1/jobs/{job}/result", headers={"accept": "application/x-npy"})
    assert np.load(io.BytesIO(file.content)).tolist() == [16]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_file_of_numpys_is_an_input_of_our_own_routes(gateway: GatewayClient) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    headers = {"content-type": "application/x-npy"}
    assert gateway.post("/predictions/mirror", content=npy(array), headers=headers).json() == {"output": array.tolist()}
    answer = gateway.post("/predictions/mirror", content=npy(array), headers={**headers, "accept": "application/x-npy"})
    assert answer.headers["content-type"] == "application/x-npy"
    assert (np.load(io.BytesIO(answer.content)) == array).all()
    assert gateway.post("/predictions/square", content=npy(array), headers=headers).status_code == 415


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\x93NUMPY\x01\x00\xff\xff{}",
        npy(np.array(["a"])),
        b"\x93NUMPY\x01\x00\x0a\x00{'a': 1}  ",
        npy(np.array([1j])),
        npy(np.asfortranarray(np.ones((2, 3)))),
        npy(np.ones(3, ">f4")),
        npy(np.ones(3))[:-1],
        npy(np.ones(3)) + b"x",
    ],
)
def test_other_files_are_refused(gateway: GatewayClient, file: bytes) -> None:
    answer = gateway.post("/predictions/mirror", content=file, headers={"content-type": "application/x-npy"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
