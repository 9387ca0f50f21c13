"""A bundle: an output of several files, kept as one payload. Its JSON has a reference in the place of each file. Pure.

A stored bundle is the length of its head (4 bytes), the head (msgpack), the JSON, and the files, one after the other. A reader
finds each of them without the others.
"""

# D77: docs/design/gateway.md

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from penstock.errors import InternalError
from penstock.outputs.media import BytesLike, Media, filename_fault, filename_parameters, type_fault

BUNDLE_MEDIA = "application/vnd.penstock.bundle"
MULTIPART = "multipart/form-data"
# The same parts for mail readers and other programs that know no forms.
MIXED = "multipart/mixed"
REFERENCE = "$media"
_LENGTH = struct.Struct(">I")
HEAD_LENGTH_BYTES = _LENGTH.size


class BundledFile(Struct, array_like=True, gc=False):
    """What the head says of one file. `filename` is None for a file without a name."""

    content_type: str
    length: int
    filename: str | None = None


class _Head(Struct, array_like=True):
    token: str
    json_length: int
    files: list[BundledFile]


class ByteRange(NamedTuple):
    """Bytes of the payload, from `start` up to `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """Where the parts of a stored bundle lie. `token` stands in its JSON for the address of the files."""

    token: str
    json: ByteRange
    files: tuple[tuple[BundledFile, ByteRange], ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)


def reference(place: int, file: Media, token: str) -> dict[str, Any]:
    """What stands in the JSON for the file at `place` (from 0). The gateway writes the job's address over the `token`."""
    name = {"filename": file.filename} if file.filename is not None else {}
    return {REFERENCE: place, "content_type": file.content_type, **name, "url": f"{token}/{place}"}


def encode_bundle(json: bytes, files: Sequence[Media], token: str) -> bytes:
    """The payload. `token`: some 32 characters that occur neither in `json`, but for its references, nor in a file."""
    listed = [BundledFile(file.content_type, memoryview(file.data).nbytes, file.filename) for file in files]
    head = _encoder.encode(_Head(token, len(json), listed))
    return b"".join([_LENGTH.pack(len(head)), head, json, *(file.data for file in files)])


def head_length(beginning: bytes) -> int:
    """The length of the head, which follows the first `HEAD_LENGTH_BYTES`. Raises `InternalError` if there is none."""
    if len(beginning) < HEAD_LENGTH_BYTES:
        raise InternalError(f"a stored bundle of {len(beginning)} bytes has no head")
    return int(_LENGTH.unpack(beginning)[0])


def decode_head(head: bytes) -> Bundle:
    """Raises `InternalError` for anything that `encode_bundle` did not write."""
    try:
        decoded = _decoder.decode(head)
    except msgspec.MsgspecError as error:
        raise InternalError(f"the head of a stored bundle cannot be read: {error}") from error
    start = HEAD_LENGTH_BYTES + len(head)
    ends = list(accumulate([decoded.json_length, *(file.length for file in decoded.files)], initial=start))
    first, *spans = map(ByteRange, ends, ends[1:])
    return Bundle(decoded.token, first, tuple(zip(decoded.files, spans, strict=True)))


def part_frames(bundle: Bundle, media: str = MULTIPART) -> list[bytes]:
    """What stands before the JSON, before each file, and at the end, where the whole is sent as this `media` type.

    A part without a `filename` is a text for the readers of forms, so a file without a name is called by its place.
    """
    own, file_of = ("form-data", "form-data") if media == MULTIPART else ("inline", "attachment")
    heads = [f'{own}; name="result"\r\ncontent-type: application/json']
    heads += [
        f'{file_of}; name="{place}"; {filename_parameters(file.filename or str(place))}\r\ncontent-type: {file.content_type}'
        for place, (file, _) in enumerate(bundle.files)
    ]
    frames = [f"\r\n--{bundle.token}\r\ncontent-disposition: {head}\r\n\r\n".encode() for head in heads]
    return [frames[0].removeprefix(b"\r\n"), *frames[1:], f"\r\n--{bundle.token}--\r\n".encode()]


def split_parts(content: bytes, boundary: str) -> list[bytes]:
    """The bodies of the parts of a multipart answer, in order. Raises `ValueError` if it has no part, or no end."""
    _, *parts = (b"\r\n" + content).split(f"\r\n--{boundary}".encode())
    if len(parts) < 2 or not parts.pop().startswith(b"--"):
        raise ValueError("it is cut off")
    return [part.partition(b"\r\n\r\n")[2] for part in parts]


def with_files(value: Any, files: Sequence[BytesLike]) -> Any:
    """The output that the JSON value stands for: each reference is replaced by its file."""
    if isinstance(value, list):
        return [with_files(part, files) for part in value]
    if not isinstance(value, dict):
        return value
    if (file := _referred(value, files)) is not None:
        return file
    return {name: with_files(part, files) for name, part in value.items()}


def _referred(value: dict[str, Any], files: Sequence[BytesLike]) -> Media | None:
    """The file that a reference names; None for an object that is no reference."""
    place, content_type, filename = value.get(REFERENCE), value.get("content_type"), value.get("filename")
    if type(place) is not int or not 0 <= place < len(files) or not isinstance(content_type, str):
        return None
    if type_fault(content_type) or not (filename is None or (isinstance(filename, str) and not filename_fault(filename))):
        return None
    return Media(files[place], content_type, filename)
