from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest, InvalidInput, TooLarge
from penstock.extensions.oip.gateway.infer_answer import InferResult
from penstock.extensions.oip.gateway.infer_request import InferRequest, WantedOutput
from penstock.extensions.oip.grpc import messages
from penstock.extensions.oip.grpc.messages import (
    answer_message,
    infer_request,
    message_class,
    split_request,
    stream_error,
    stream_message,
)
from penstock.gateway.rpc.pool import parsed
from penstock.job import new_job_id
from penstock.tensors.tensor import Tensor

FOLDER = Path(messages.__file__).resolve().parent
REQUEST = message_class("ModelInferRequest")
RESPONSE = message_class("ModelInferResponse")
KIB = 1024
# Prints names, numbers, labels and types of the fields of each message in the client's own descriptors.
CLIENT_FIELDS = """
import json
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

found = {}
def look(message, path):
    name = f"{path}{message.name}"
    found[name] = {one.name: [one.number, one.label, one.type, one.type_name] for one in message.field}
    for inner in message.nested_type:
        look(inner, f"{name}.")
for module in (service_pb2, model_config_pb2):
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        look(message, "")
    for service in file.service:
        found[service.name] = {one.name: [one.input_type, one.output_type] for one in service.method}
print(json.dumps(found))
"""


def files() -> list[Any]:
    data = (FOLDER / "inference.binpb").read_bytes()
    return list(descriptor_pb2.FileDescriptorSet.FromString(data).file)


def fields_of(message: Any, path: str = "") -> dict[str, dict[str, list[Any]]]:
    name = f"{path}{message.name}"
    found = {name: {one.name: [one.number, one.label, one.type, one.type_name] for one in message.field}}
    for inner in message.nested_type:
        found |= fields_of(inner, f"{name}.")
    return found


def test_our_messages_are_those_of_the_client() -> None:
    pytest.importorskip("tritonclient")
    import json

    # In a process of its own: a pool takes these names only once.
    client = json.loads(subprocess.run([sys.executable, "-c", CLIENT_FIELDS], capture_output=True, check=True).stdout)
    ours = files()[0]
    assert ours.package == "inference"
    for message in ours.message_type:
        for name, fields in fields_of(message).items():
            assert fields.items() <= client[name].items(), name
    methods = {one.name: [one.input_type, one.output_type] for one in ours.service[0].method}
    assert methods.items() <= client["GRPCInferenceService"].items()


def request(**more: Any) -> Any:
    given = {"name": "x", "datatype": "INT16", "shape": [2]}
    return REQUEST(model_name="m", inputs=[given], raw_input_contents=[b"1234"], **more)


def test_raw_tensors_are_views_of_the_message() -> None:
    data = request(id="7").SerializeToString()
    found, raw = split_request(data, max_bytes=KIB)
    assert (found.id, len(found.raw_input_contents)) == ("7", 0)
    assert [bytes(one) for one in raw] == [b"1234"]
    assert raw[0].obj is data
    (tensor,) = infer_request(found, raw).tensors
    assert isinstance(tensor.data, memoryview)
    assert tensor.data.obj is data


@given(st.binary(max_size=200))
def test_bytes_are_read_as_protobuf_reads_them_or_refused(data: bytes) -> None:
    try:
        found, raw = split_request(data, max_bytes=KIB)
    except BadRequest:
        return
    whole = REQUEST.FromString(data)
    assert [bytes(one) for one in raw] == list(whole.raw_input_contents)
    whole.ClearField("raw_input_contents")
    found.DiscardUnknownFields()
    whole.DiscardUnknownFields()
    assert found.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def test_what_is_not_raw_is_bounded() -> None:
    assert split_request(request().SerializeToString() + b"\x3a\x80\x10" + bytes(2_048), max_bytes=KIB)
    with pytest.raises(TooLarge, match="beside raw_input_contents"):
        split_request(request(id="i" * 2_000).SerializeToString(), max_bytes=KIB)


def test_typed_and_raw_tensors_may_stand_side_by_side() -> None:
    typed = {"name": "y", "datatype": "INT16", "shape": [1], "contents": {"int_contents": [-2]}}
    made = request()
    made.inputs.add(**typed)
    found = infer_request(*split_request(made.SerializeToString(), max_bytes=KIB))
    assert [bytes(one.data) for one in found.tensors] == [b"1234", b"\xfe\xff"]
    made.inputs[1].contents.int_contents[:] = [1 << 20]
    with pytest.raises(InvalidInput, match="holds something else"):
        infer_request(*split_request(made.SerializeToString(), max_bytes=KIB))


def result(**more: Any) -> InferResult:
    tensors = (Tensor("y", "INT16", (2,), b"abcd"), Tensor("z", "BYTES", (1,), bytes(200), "application/json"))
    return InferResult("m", "1", new_job_id("m"), tensors, **more)


def test_an_answer_is_a_message_with_the_outputs_that_were_asked_for() -> None:
    asked = InferRequest((), "7", (WantedOutput("z", True), WantedOutput("y", True)))
    found = RESPONSE.FromString(answer_message(asked, result()))
    assert (found.id, found.model_name, found.model_version) == ("7", "m", "1")
    assert [(one.name, one.datatype, list(one.shape)) for one in found.outputs] == [("z", "BYTES", [1]), ("y", "INT16", [2])]
    assert list(found.raw_output_contents) == [bytes(200), b"abcd"]
    assert found.outputs[0].parameters["content_type"].string_param == "application/json"
    with pytest.raises(InvalidInput, match="no output 'n'"):
        answer_message(InferRequest((), outputs=(WantedOutput("n", True),)), result())


def test_the_answers_of_a_stream() -> None:
    kind = message_class("ModelStreamInferResponse")
    found = kind.FromString(stream_message(InferRequest((), "7"), result(), is_final=True)).infer_response
    assert found.parameters["triton_final_response"].bool_param
    assert list(found.raw_output_contents) == [b"abcd", bytes(200)]
    assert (
        "triton_final_response"
        not in kind.FromString(stream_message(InferRequest(()), result(), is_final=None)).infer_response.parameters
    )
    refused = kind.FromString(stream_error("no", "7"))
    assert (refused.error_message, refused.infer_response.id) == ("no", "7")


def test_other_messages_are_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="are no ModelReadyRequest"):
        parsed(message_class("ModelReadyRequest"), b"\xff")
