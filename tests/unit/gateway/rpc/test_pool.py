"""Messages without generated code: read from descriptors that are made of the .proto files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from penstock.errors import BadRequest
from penstock.gateway.rpc.pool import MessagePool, parsed

GATEWAY = Path(__file__).parents[4] / "gateway"
STATUS = ("rpc", "status.binpb", ["status.proto"])
INFERENCE = ("oip/grpc", "inference.binpb", ["inference.proto"])
TORCHSERVE = ("torchserve/grpc", "torchserve.binpb", ["inference.proto", "management.proto"])


def files(path: Path) -> list[Any]:
    return list(descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file)


@pytest.mark.parametrize(("folder", "descriptors", "sources"), [STATUS, INFERENCE, TORCHSERVE])
def test_the_descriptors_are_made_of_the_proto_files(tmp_path: Path, folder: str, descriptors: str, sources: list[str]) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    made = tmp_path / "made.binpb"
    more = ["--include_imports", f"-I{GATEWAY / 'rpc'}"] if folder.startswith("torchserve") else []
    assert not protoc.main(["", f"-I{GATEWAY / folder}", *more, f"--descriptor_set_out={made}", *sources])
    assert files(made) == files(GATEWAY / folder / descriptors), "run `make proto`"


def test_a_message_is_read_or_refused() -> None:
    kind = MessagePool("penstock.gateway.rpc", "status.binpb").message_class("google.rpc.Status")
    assert parsed(kind, kind(code=5, message="m").SerializeToString()).code == 5
    with pytest.raises(BadRequest, match="these 1 bytes are no Status"):
        parsed(kind, b"\x0a")
