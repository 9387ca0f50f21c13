"""Callers that send one tensor over and over, each over a connection of its own: over HTTP/1.1, or as gRPC calls."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from benchmarks.experiments.doors import frames
from benchmarks.experiments.doors.frames import HttpFrame
from penstock.errors import PenstockError
from penstock.loadtest.generator.answers import AnswerReader

_LIMIT_S = 60.0
# How much is taken in before the server may send more.
_ALLOW_BYTES = 1 << 20


@dataclass(slots=True)
class DoorReadings:
    """What the callers of one door saw while they were counted. `first`: the first answer's bytes, as it came."""

    took_s: list[float] = field(default_factory=list)
    bad: int = 0
    first: bytes = b""


class DoorCaller(asyncio.Protocol):
    """A connection that repeats its request until `over`."""

    def __init__(self) -> None:
        self.over = False
        self.seen = DoorReadings()
        self.sent_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over:
            self.seen.bad += 1

    def write(self, data: bytes | memoryview) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def answered(self, *, good: bool, answer: bytes) -> None:
        self.seen.bad += not good
        if good:
            self.seen.took_s.append(time.perf_counter() - self.sent_at)
        self.seen.first = self.seen.first or answer
        self.send()

    def begin(self, seen: DoorReadings) -> None:
        self.seen = seen

    def send(self) -> None:
        raise NotImplementedError


class HttpCaller(DoorCaller):
    """`request`: the whole request, head and body."""

    def __init__(self, request: bytes) -> None:
        super().__init__()
        self._request = request
        self._reader = AnswerReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send()

    def send(self) -> None:
        if not self.over:
            self.sent_at = time.perf_counter()
            self.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._reader.feed(data):
            self.answered(good=self._reader.status == 200, answer=self._reader.body)


@dataclass(slots=True)
class GrpcCall:
    """One call under way: what is left to be sent, and how much of it its stream may carry."""

    left: memoryview
    window: int
    sent_at: float
    answer: list[bytes] = field(default_factory=list)


class GrpcCaller(DoorCaller):
    """`head`: the header block of each call; `message`: what it sends; `calls`: how many are under way at a time."""

    def __init__(self, head: bytes, message: bytes, calls: int = 1) -> None:
        super().__init__()
        self._head = head
        self._message = frames.message_bytes(message)
        self._calls = calls
        self._buffer = b""
        self._stream = -1
        self._under_way: dict[int, GrpcCall] = {}
        self._window = self._initial = frames.WINDOW_BYTES
        self._taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.write(frames.opening())

    def send(self) -> None:
        if self.over:
            return
        self._stream += 2
        self._under_way[self._stream] = GrpcCall(memoryview(self._message), self._initial, time.perf_counter())
        self.write(frames.frame(frames.HEADERS, self._stream, self._head, flags=frames.END_HEADERS))
        self._send_on()

    def _send_on(self) -> None:
        pieces: list[bytes] = []
        for stream, call in self._under_way.items():
            while call.left and (room := min(frames.FRAME_BYTES, self._window, call.window)) > 0:
                part, call.left = call.left[:room], call.left[room:]
                self._window -= len(part)
                call.window -= len(part)
                flags = 0 if call.left else frames.END_STREAM
                pieces.append(frames.frame(frames.DATA, stream, part, flags=flags))
        if pieces:
            self.write(b"".join(pieces))

    def data_received(self, data: bytes) -> None:
        found, self._buffer = frames.frames_in(self._buffer + data)
        for one in found:
            self._read(one)
        self._send_on()

    def _read(self, one: HttpFrame) -> None:
        if one.kind == frames.SETTINGS and not one.flags & frames.ACK:
            self._initial = frames.settings_in(one).get(frames.INITIAL_WINDOW, self._initial)
            self.write(frames.frame(frames.SETTINGS, flags=frames.ACK))
            for _ in range(self._calls if self._stream < 0 else 0):
                self.send()
        elif one.kind == frames.PING and not one.flags & frames.ACK:
            self.write(frames.frame(frames.PING, data=bytes(one.data), flags=frames.ACK))
        elif one.kind == frames.WINDOW_UPDATE and one.stream == 0:
            self._window += int.from_bytes(one.data, "big")
        elif one.stream in self._under_way:
            self._read_call(one, self._under_way[one.stream])

    def _read_call(self, one: HttpFrame, call: GrpcCall) -> None:
        if one.kind == frames.WINDOW_UPDATE:
            call.window += int.from_bytes(one.data, "big")
            return
        if one.kind == frames.DATA:
            call.answer.append(bytes(one.data))
            self._allow(len(one.data))
        if one.kind == frames.RST_STREAM or one.flags & frames.END_STREAM:
            del self._under_way[one.stream]
            self.sent_at = call.sent_at
            # A refused call has no message.
            self.answered(good=sum(map(len, call.answer)) > 5, answer=b"".join(call.answer))

    def _allow(self, size: int) -> None:
        self._taken += size
        if self._taken > _ALLOW_BYTES:
            self.write(frames.frame(frames.WINDOW_UPDATE, data=struct.pack(">I", self._taken)))
            self._taken = 0


async def call_for(port: int, make: Callable[[], DoorCaller], *, callers: int, warm_s: float, busy_s: float) -> DoorReadings:
    """What the callers saw in `busy_s`, after `warm_s`. Raises `PenstockError` if a call had no good answer."""
    loop, seen, warm = asyncio.get_running_loop(), DoorReadings(), DoorReadings()
    async with asyncio.timeout(_LIMIT_S + warm_s + busy_s):
        made = [(await loop.create_connection(make, "127.0.0.1", port))[1] for _ in range(callers)]
        for one in made:
            one.begin(warm)
        await asyncio.sleep(warm_s)
        for one in made:
            one.begin(seen)
        await asyncio.sleep(busy_s)
        for one in made:
            one.over = True
            one.begin(DoorReadings())
            if one.transport is not None:
                one.transport.close()
    if warm.bad + seen.bad or not seen.took_s:
        raise PenstockError(f"{warm.bad + seen.bad} calls failed, {len(seen.took_s)} were answered: {warm.first[:500]!r}")
    return seen
