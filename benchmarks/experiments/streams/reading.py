"""Callers that read one stream after another, and what they saw. Chunks are counted as they arrive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

_LIMIT_S = 60.0
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """How a server is asked for a stream, and the bytes that stand once in each chunk of its answer."""

    path: str
    body: bytes
    mark: bytes
    accept: str = "*/*"

    def text(self) -> bytes:
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
            f"accept: {self.accept}\r\ncontent-length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(slots=True)
class StreamReadings:
    """`first_s`: per stream, from the request to the first chunk. `chunks`: all that came while it was measured."""

    first_s: list[float] = field(default_factory=list)
    chunks: int = 0
    streams: int = 0
    broken: int = 0


async def read_for(
    port: int, asked: StreamRequest, *, callers: int, chunks_each: int, warm_s: float, busy_s: float
) -> StreamReadings:
    """What callers saw who, for `busy_s` after `warm_s`, ask for the next stream as soon as the last one has ended."""
    began = time.perf_counter() + warm_s
    seen = StreamReadings()
    reading = [_caller(port, asked, chunks_each, began, began + busy_s, seen) for _ in range(callers)]
    await asyncio.wait_for(asyncio.gather(*reading), _LIMIT_S + warm_s + busy_s)
    return seen


async def _caller(port: int, asked: StreamRequest, chunks_each: int, begin: float, end: float, seen: StreamReadings) -> None:
    while time.perf_counter() < end:
        count = await _stream(port, asked, begin, end, seen)
        seen.streams += 1
        seen.broken += count != chunks_each


async def _stream(port: int, asked: StreamRequest, begin: float, end: float, seen: StreamReadings) -> int:
    """How many chunks one stream had."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, marks = time.perf_counter(), Marks(asked.mark)
    writer.write(asked.text())
    while data := await reader.read(_READ):
        now, before = time.perf_counter(), marks.count
        found = marks.read(data)
        if found and not before and begin <= sent < end:
            seen.first_s.append(now - sent)
        seen.chunks += found if begin <= now < end else 0
    writer.close()
    return marks.count


class Marks:
    """Counts a mark in a text that comes in pieces, also where the end of a piece cuts it. Pure."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest = b""
        self.count = 0

    def read(self, data: bytes) -> int:
        """How often the mark ended in this piece."""
        *whole, rest = (self._rest + data).split(self._mark)
        self._rest = rest[len(rest) - len(self._mark) + 1 :] if len(rest) >= len(self._mark) else rest
        self.count += len(whole)
        return len(whole)
