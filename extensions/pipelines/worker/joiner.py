"""Puts inputs of stages and results together, a few at a time: each may need as much memory as a large image has bytes."""

# D100: docs/design/pipelines.md

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from penstock.broker.blobs.files import BlobStore
from penstock.extensions.pipelines.worker.binding import Read
from penstock.job import Payload

# Over all drives of one pipeline. Each join may have `MOST_JOINED_BYTES` in memory, and the object that is made of them.
MOST_JOINS = 8
Join = Callable[[Mapping[str, Payload], Read], Payload]


class Joiner:
    """For one event loop. A large object is moved to a blob before the next one is made."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._room = asyncio.Semaphore(MOST_JOINS)

    async def join(self, join: Join, values: Mapping[str, Payload], *, blob: str, inline_bytes: int) -> Payload:
        """What `join` makes of the values; over `inline_bytes` it becomes a blob of this name, which begins with the serial of
        the job that is to delete it. Raises as `join` does, and `BlobsUnavailable`.
        """
        async with self._room:
            # What is read and joined may be large, and blobs may be far away.
            made = await asyncio.to_thread(join, values, self._read)
            return await self.stored(made, blob=blob, inline_bytes=inline_bytes)

    async def stored(self, value: Payload, *, blob: str, inline_bytes: int) -> Payload:
        """The value itself, or its blob of this name if it has more than `inline_bytes`. Raises `BlobsUnavailable`."""
        if value.blob or len(value.data) <= inline_bytes:
            return value
        # D9: blob first, submit or finish second.
        [name] = await asyncio.to_thread(self._blobs.append_all, [(blob, value.data)])
        return Payload(value.content_type, blob=name)

    def _read(self, payload: Payload) -> bytes:
        return self._blobs.get(payload.blob) if payload.blob else payload.data
