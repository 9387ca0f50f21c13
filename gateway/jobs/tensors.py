"""Arrays on our own routes: a body in numpy's file format as an input, and outputs of tensors as responses."""

# D83: docs/design/protocols.md
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from penstock.broker.blobs.readers import BytesReader
from penstock.errors import InvalidInput
from penstock.gateway.asgi import bodies
from penstock.gateway.asgi.content import Content, file_headers
from penstock.gateway.asgi.negotiation import JSON
from penstock.gateway.jobs.submitting.form_input import as_json
from penstock.gateway.models.registry import VersionEntry
from penstock.inputs.tensors import names_refused, plain_input
from penstock.job import NPY_MEDIA, TENSORS_MEDIA, JobId, Payload
from penstock.tensors.npy import npy_of_tensor, tensor_of_npy
from penstock.tensors.tensor import TEXTS, Tensor, decode_tensors, encode_tensors, nested, texts_of, values_of

_VARY = {"vary": "accept"}
# Up to this size, tensors are checked as plain values in the event loop.
_SMALL_BYTES = 64 * 1024


async def npy_input(body: bytes) -> Payload:
    """The input for a body in numpy's file format. Raises `InvalidInput`."""
    make = _npy_payload
    return make(body) if len(body) <= _SMALL_BYTES else await asyncio.to_thread(make, body)


def _npy_payload(body: bytes) -> Payload:
    return Payload(TENSORS_MEDIA, encode_tensors([tensor_of_npy(body)]))


def check_tensors(tensors: Sequence[Tensor], version: VersionEntry) -> None:
    """Raises `InvalidInput` for tensors that this version does not take, as far as its schema says.

    A model that takes arrays checks them itself: the schema needs lists, which are slow to make. Takes milliseconds for
    large inputs of other models: call it in a thread.
    """
    fault = names_refused(tensors)
    if fault:
        raise InvalidInput(fault)
    if version.validator is not None and NPY_MEDIA not in version.accepts:
        bodies.check_schema(as_json(plain_input(tensors, version.input_schema)), version.validator, version.input_schema)


def check_tensor_payload(data: bytes, version: VersionEntry) -> None:
    """As `check_tensors`, for a stored input that a replay sends to another version."""
    check_tensors(decode_tensors(data), version)


async def tensors_content(data: bytes, job: JobId, accept: str) -> Content:
    """The output as JSON, or as numpy's file if the client accepts it and the output is one array of numbers."""
    media, made = await asyncio.to_thread(_written, data, accept)
    name = f"{job}.npy" if media == NPY_MEDIA else str(job)
    return Content(BytesReader(made), {**file_headers(media), **_VARY}, name)


def _written(data: bytes, accept: str) -> tuple[str, bytes]:
    tensors = decode_tensors(data)
    file = npy_of_tensor(tensors[0]) if NPY_MEDIA in accept.lower() and len(tensors) == 1 else None
    return (JSON, orjson.dumps(plain_output(tensors))) if file is None else (NPY_MEDIA, file)


def plain_output(tensors: Sequence[Tensor]) -> Any:
    """The value in JSON: an object with a member per tensor. NaN and infinity are null, because JSON has neither."""
    return {tensor.name: _plain(tensor) for tensor in tensors}


def _plain(tensor: Tensor) -> Any:
    if tensor.datatype != TEXTS:
        return values_of(tensor)
    texts: list[Any] = [text.decode("utf-8", "replace") for text in texts_of(tensor)]
    if tensor.content_type == JSON and len(texts) == 1:
        return orjson.loads(texts[0])
    return nested(texts, tensor.shape)
