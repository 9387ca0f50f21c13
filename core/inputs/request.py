"""What a request says beside its body, stored with the input of a model whose settings name it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from penstock.access import ANY_HEADER, CREDENTIAL_HEADERS, HANDED_ON_CREDENTIALS
from penstock.errors import InvalidInput, TooLarge
from penstock.job import REQUEST_MEDIA, Payload

# They are of one connection, and not of what was asked over it.
_OF_CONNECTION = frozenset(
    {"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
_NOT_AMONG_ALL = CREDENTIAL_HEADERS | HANDED_ON_CREDENTIALS | _OF_CONNECTION
MOST_HEADER_BYTES = 16 * 1024


class RequestInput(Struct, array_like=True, gc=False):
    """An input with the headers and query parameters of its request."""

    content_type: str
    data: bytes
    headers: dict[str, str] = {}
    query: dict[str, str] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RequestInput)


def packed(payload: Payload, *, headers: dict[str, str], query: Mapping[str, str]) -> Payload:
    """The payload together with these; the payload itself if there are none."""
    if not headers and not query:
        return payload
    found = RequestInput(payload.content_type, payload.data, headers, dict(query))
    return Payload(REQUEST_MEDIA, _encoder.encode(found))


def unpacked(payload: Payload) -> Payload:
    """The payload as it came in its request."""
    if payload.content_type != REQUEST_MEDIA:
        return payload
    found = decode_request(payload.data)
    return Payload(found.content_type, found.data)


def decode_request(data: bytes) -> RequestInput:
    """Raises `InvalidInput` for anything that `packed` did not write."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"these {len(data)} bytes are no input of a request ({REQUEST_MEDIA}): {error}") from error


def wanted_headers(headers: Iterable[tuple[bytes, bytes]], names: Sequence[str]) -> dict[str, str]:
    """The headers with these lower-case names; values of one name are joined by a comma, as HTTP has it.

    If `ANY_HEADER` is among the names, these are all but those of the connection and those with credentials. Raises
    `TooLarge` if they are too long.
    """
    found: dict[str, str] = {}
    size, is_any = 0, ANY_HEADER in names
    for raw, value in headers if names else ():
        name = raw.decode("latin-1")
        if name in names or (is_any and name not in _NOT_AMONG_ALL):
            text = value.decode("latin-1")
            found[name] = f"{found[name]}, {text}" if name in found else text
            size += len(raw) + len(value)
    if size > MOST_HEADER_BYTES:
        raise TooLarge(f"the headers for the model have {size} bytes; {MOST_HEADER_BYTES} is the limit")
    return found
