"""The output of a job as a prediction shows it: its JSON, with a data URL or a link in place of each file."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from penstock.broker.blobs.readers import BlobReader, SliceReader
from penstock.broker.records import Push
from penstock.extensions.replicate.gateway.views import result_url
from penstock.gateway.asgi.bundles import read_bundle
from penstock.gateway.asgi.negotiation import JSON, base_type
from penstock.gateway.jobs.results import ResultReader
from penstock.inputs.file import File, data_url
from penstock.outputs.bundle import BUNDLE_MEDIA, REFERENCE
from penstock.outputs.media import split_filename

# Files stand in the answer up to this size in all. Clients poll, so larger ones become links.
INLINE_BYTES = 256 * 1024
# Larger JSON becomes a link, too.
MOST_JSON_BYTES = 4 * 1024 * 1024


async def shown_output(results: ResultReader, end: Push, base: str, *, inline_bytes: int = INLINE_BYTES) -> Any:
    """A value for orjson, with links in place of files beyond `inline_bytes`. Raises `Gone` after the retention."""
    media, reader = await results.opened(end)
    link = result_url(end.id, base)
    if media == BUNDLE_MEDIA:
        return await _with_links(reader, link, inline_bytes)
    if base_type(media) == JSON:
        return orjson.Fragment(await _bytes(reader)) if reader.size <= MOST_JSON_BYTES else link
    return await _as_url(media, reader) if reader.size <= inline_bytes else link


async def _with_links(reader: BlobReader, link: str, inline_bytes: int) -> Any:
    bundle = await read_bundle(reader)
    json = SliceReader(reader, *bundle.json)
    if json.size > MOST_JSON_BYTES:
        return link
    urls, left = [], inline_bytes
    for place, (file, part) in enumerate(bundle.files):
        left -= file.length
        inline = left >= 0
        urls.append(await _as_url(file.content_type, SliceReader(reader, *part)) if inline else f"{link}/parts/{place}")
    return _replaced(orjson.loads(await _bytes(json)), bundle.token, urls)


def _replaced(value: Any, token: str, urls: list[str]) -> Any:
    """The value with the address of each file in place of the reference to it."""
    if isinstance(value, list):
        return [_replaced(own, token, urls) for own in value]
    if not isinstance(value, dict):
        return value
    place = value.get(REFERENCE)
    if type(place) is int and 0 <= place < len(urls) and value.get("url") == f"{token}/{place}":
        return urls[place]
    return {name: _replaced(own, token, urls) for name, own in value.items()}


async def _as_url(media: str, reader: BlobReader) -> str:
    return data_url(File(await _bytes(reader), base_type(split_filename(media)[0])))


async def _bytes(reader: BlobReader) -> bytes:
    return await asyncio.to_thread(lambda: b"".join(reader.pieces(0, reader.size)))
