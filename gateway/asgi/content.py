"""A file as a response: headers that keep browsers from running it, and bytes that are read as the client receives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from starlette.responses import Response

from penstock.broker.blobs.readers import BlobReader, BytesReader
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.negotiation import JSON, OCTETS, base_type
from penstock.gateway.asgi.ranges import Conditions, ContentPart, wanted_part
from penstock.gateway.asgi.wire import HEAD_ONLY, UNTRUSTED, Receive, Scope, Send, header_value
from penstock.outputs.media import filename_parameters, split_filename
from penstock.outputs.response_head import ResponseHead, split_head

# Types that a browser may display, because it runs no code in them. All other types are saved.
_SHOWN = frozenset({JSON, "text/plain", "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"})
_SHOWN_FAMILIES = ("audio/", "video/")
HANDLER_STATUS = "x-handler-status"


def file_headers(stored_type: str) -> dict[str, str]:
    """The headers of a response with an output, whose media type is as `penstock.outputs.media.stored_type` has made it.

    The handler's headers come first. Its status is sent as a header, because the request itself succeeded.
    """
    media, filename = split_filename(stored_type)
    headers = _said_by_handler(split_head(stored_type)[1])
    headers |= {"content-type": header_value(media).decode("latin-1"), **UNTRUSTED}
    if disposition := _disposition(base_type(media), filename):
        headers["content-disposition"] = disposition
    return headers


def _said_by_handler(said: ResponseHead | None) -> dict[str, str]:
    if said is None:
        return {}
    status = {} if said.status == 200 else {HANDLER_STATUS: str(said.status)}
    return {name.lower(): value for name, value in said.headers.items()} | status


def _disposition(base: str, filename: str | None) -> str:
    is_shown = base in _SHOWN or base.startswith(_SHOWN_FAMILIES)
    if filename is None:
        # Browsers save bytes of an unknown type anyway.
        return "" if is_shown or base == OCTETS else "attachment"
    return f"{'inline' if is_shown else 'attachment'}; {filename_parameters(filename)}"


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes to be sent. `name` identifies exactly these bytes. `said`: the handler's status and headers for a response."""

    reader: BlobReader
    headers: dict[str, str]
    name: str
    said: ResponseHead | None = None


def response_to(content: Content, conditions: Conditions | None) -> ContentResponse:
    """The whole content, or the part that the `conditions` of a GET select. Raises `RangeNotSatisfiable`."""
    size, tag = content.reader.size, f'"{content.name}"'
    if conditions is None:
        return ContentResponse(content.reader, ContentPart(200, 0, size), content.headers)
    part = wanted_part(size, tag, conditions)
    headers = {**content.headers, "etag": tag, "accept-ranges": "bytes"}
    if part.status == 206:
        headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{size}"
    return ContentResponse(content.reader, part, headers)


class ContentResponse(Response):
    """A part of some content. One piece is in memory at a time; the next is read when the client has received it."""

    def __init__(self, content: BlobReader, part: ContentPart, headers: Mapping[str, str]) -> None:
        length = {} if part.status == 304 else {"content-length": str(part.end - part.start)}
        super().__init__(status_code=part.status, headers={**headers, **length})
        self._content = content
        self._part = part
        self._waiting: AbstractContextManager[None] = nullcontext()

    def wait_in(self, waiting: AbstractContextManager[None]) -> None:
        """Send a streamed body within `waiting`: a slow client uses no permit for work."""
        if not isinstance(self._content, BytesReader):
            self._waiting = waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        with self._waiting:
            await self._send(scope, send)

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if not scope.get(HEAD_ONLY):
            connection = connection_of(scope)
            async for piece in self._pieces():
                if connection.lost:
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncIterator[bytes]:
        pieces = self._content.pieces(self._part.start, self._part.end)
        if isinstance(self._content, BytesReader):
            for piece in pieces:
                yield piece
            return
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece
