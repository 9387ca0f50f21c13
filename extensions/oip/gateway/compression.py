"""Compressed bodies, both ways, which other routes refuse. What is inflated is bounded."""

from __future__ import annotations

import asyncio
import zlib

from penstock.errors import BadRequest, TooLarge, UnsupportedMedia
from penstock.gateway.asgi.wire import BodyMemory, Scope

# For zlib: a gzip frame, and the zlib frame that HTTP calls deflate.
_WINDOW = {"gzip": 31, "deflate": 15}
_PIECE_BYTES = 1 << 20
# Below it, the frame costs more than it saves.
_LEAST_BYTES = 512
_LEVEL = 1


async def inflated(body: bytes, encoding: str, *, limit: int, memory: BodyMemory, scope: Scope) -> bytes:
    """The body without its Content-Encoding, inflated piece by piece and never beyond `limit` bytes.

    Raises `UnsupportedMedia` for another encoding, `TooLarge`, `BadRequest` for a damaged body, `GatewayBusy` for full memory.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WINDOW:
        raise UnsupportedMedia(f"the Content-Encoding {name[:40]!r} is not read; send gzip, deflate or none")
    inflater, pieces = zlib.decompressobj(_WINDOW[name]), []
    rest = body
    while not inflater.eof:
        memory.take(_PIECE_BYTES, scope)
        piece = await asyncio.to_thread(_piece, inflater, rest)
        rest = inflater.unconsumed_tail
        if not piece and not inflater.eof:
            raise BadRequest(f"the {name} body ends before its end")
        pieces.append(piece)
        if sum(map(len, pieces)) > limit:
            raise TooLarge(f"the body has more than {limit} bytes once it is inflated", hint="Raise gateway.max_raw_bytes.")
    if inflater.unused_data:
        raise BadRequest(f"bytes follow the end of the {name} body")
    return b"".join(pieces)


def _piece(inflater: zlib._Decompress, data: bytes) -> bytes:
    try:
        return inflater.decompress(data, _PIECE_BYTES)
    except zlib.error as error:
        raise BadRequest(f"the body cannot be inflated: {error}") from None


async def deflated(body: bytes, accepted: str) -> tuple[bytes, str]:
    """The body and its Content-Encoding: only for a caller who accepts one encoding alone and so asks for it.

    Many clients list every encoding that they can read; tensors of numbers hardly shrink, and would take processor time.
    """
    name = accepted.strip().lower()
    if name not in _WINDOW or len(body) < _LEAST_BYTES:
        return body, ""
    return await asyncio.to_thread(_deflated, body, _WINDOW[name]), name


def _deflated(body: bytes, window: int) -> bytes:
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, window)
    return deflater.compress(body) + deflater.flush()
