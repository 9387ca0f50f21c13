"""The messages of a protocol, from the descriptors that `make proto` writes. No code is generated."""

# D91: docs/design/protocols.md
from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.errors import BadRequest


class MessagePool:
    """A separate pool: the default one would clash with the messages of a client in the same process."""

    def __init__(self, package: str, file: str) -> None:
        self.descriptors: Any = descriptor_pool.DescriptorPool()
        self._classes: dict[str, Any] = {}
        data = resources.files(package).joinpath(file).read_bytes()
        for one in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            self.descriptors.Add(one)

    def message_class(self, name: str) -> Any:
        """The class of the message with this full name."""
        if name not in self._classes:
            self._classes[name] = message_factory.GetMessageClass(self.descriptors.FindMessageTypeByName(name))
        return self._classes[name]

    def written(self, name: str, /, **members: Any) -> bytes:
        """The bytes of a message with this full name and these members."""
        made: bytes = self.message_class(name)(**members).SerializeToString()
        return made


def parsed(kind: Any, data: bytes) -> Any:
    """Raises `BadRequest` for bytes that are not a message of this kind."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadRequest(f"these {len(data)} bytes are no {kind.DESCRIPTOR.name}") from None
