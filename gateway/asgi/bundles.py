"""A bundle as a response: JSON with links, a single file, or everything as a form."""

from __future__ import annotations

import asyncio

from penstock.broker.blobs.readers import BlobReader, BytesReader, JoinedReader, SliceReader
from penstock.errors import NotFound
from penstock.gateway.asgi.content import Content, file_headers
from penstock.gateway.asgi.negotiation import JSON, MULTIPART
from penstock.gateway.asgi.wire import UNTRUSTED
from penstock.job import JobId
from penstock.outputs.bundle import HEAD_LENGTH_BYTES, MIXED, Bundle, BundledFile, decode_head, head_length, part_frames
from penstock.outputs.media import stored_type

_VARY = {"vary": "accept"}


async def bundle_content(reader: BlobReader, job: JobId, accept: str) -> Content:
    """The JSON; or a form with the part `result` and the files, if the client accepts a multipart type."""
    bundle = await read_bundle(reader)
    json = await _bytes(reader, *bundle.json)
    json = json.replace(bundle.token.encode(), f"/v1/jobs/{job}/result/parts".encode())
    media = next((media for media in (MULTIPART, MIXED) if media in accept.lower()), "")
    if not media:
        return Content(BytesReader(json), {**file_headers(JSON), **_VARY}, str(job))
    bodies: list[BlobReader] = [BytesReader(json), *(SliceReader(reader, *span) for _, span in bundle.files)]
    *frames, end = map(BytesReader, part_frames(bundle, media))
    parts = [reader for framed in zip(frames, bodies, strict=True) for reader in framed]
    headers = {"content-type": f"{media}; boundary={bundle.token}", **UNTRUSTED, **_VARY}
    return Content(JoinedReader([*parts, end]), headers, f"{job}.{media.rpartition('/')[2]}")


async def bundled_content(reader: BlobReader, job: JobId, place: int) -> Content:
    """One file of the bundle. Raises `NotFound`."""
    file, part = await bundled_file(reader, job, place)
    return Content(part, file_headers(stored_type(file.content_type, file.filename)), f"{job}.{place}")


async def bundled_file(reader: BlobReader, job: JobId, place: int) -> tuple[BundledFile, BlobReader]:
    """The entry of one file in the bundle's head, and its bytes. Raises `NotFound`."""
    bundle = await read_bundle(reader)
    if not 0 <= place < len(bundle.files):
        raise NotFound(f"the output of job {job} has {len(bundle.files)} files, counted from 0; there is no file {place}")
    file, where = bundle.files[place]
    return file, SliceReader(reader, *where)


async def read_bundle(reader: BlobReader) -> Bundle:
    """The places of the bundle's parts."""
    length = head_length(await _bytes(reader, 0, HEAD_LENGTH_BYTES))
    return decode_head(await _bytes(reader, HEAD_LENGTH_BYTES, HEAD_LENGTH_BYTES + length))


async def _bytes(reader: BlobReader, start: int, end: int) -> bytes:
    return await asyncio.to_thread(lambda: b"".join(reader.pieces(start, end)))
