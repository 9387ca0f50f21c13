"""Headers and query parameters of a request, stored with the input if the model's settings name them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from penstock.errors import InvalidInput
from penstock.job import REQUEST_MEDIA, Payload


class RequestInput(Struct, array_like=True, gc=False):
    """An input with the headers and query parameters of its request."""

    content_type: str
    data: bytes
    headers: dict[str, str] = {}
    query: dict[str, str] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RequestInput)


def packed(payload: Payload, *, headers: dict[str, str], query: Mapping[str, str]) -> Payload:
    """The payload with its headers and query parameters; the payload itself if it has none."""
    if not headers and not query:
        return payload
    request = RequestInput(payload.content_type, payload.data, headers, dict(query))
    return Payload(REQUEST_MEDIA, _encoder.encode(request))


def unpacked(payload: Payload) -> Payload:
    """The payload as it came in its request."""
    if payload.content_type != REQUEST_MEDIA:
        return payload
    request = decode_request(payload.data)
    return Payload(request.content_type, request.data)


def decode_request(data: bytes) -> RequestInput:
    """Raises `InvalidInput` for anything that `packed` did not write."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"these {len(data)} bytes are no input of a request ({REQUEST_MEDIA}): {error}") from error
