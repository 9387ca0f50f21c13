"""Just enough of HTTP/2 to send gRPC calls, byte by byte, for callers that cost little or that need not behave. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 4
# What a frame may hold unless its receiver allows more, and what a receiver takes unless it says so.
FRAME_BYTES, WINDOW_BYTES = 16_384, 65_535
MOST_WINDOW = (1 << 31) - 1
_HEAD_BYTES = 9


class HttpFrame(NamedTuple):
    kind: int
    flags: int
    stream: int
    data: memoryview


def frame(kind: int, stream: int = 0, data: bytes | memoryview = b"", *, flags: int = 0) -> bytes:
    return len(data).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + data


def opening() -> bytes:
    """What a client sends first. It takes whatever is sent to it."""
    settings = struct.pack(">HI", INITIAL_WINDOW, MOST_WINDOW)
    return PREFACE + frame(SETTINGS, data=settings) + frame(WINDOW_UPDATE, data=struct.pack(">I", MOST_WINDOW - WINDOW_BYTES))


def call_head(path: str, *, scheme: str = "http", metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The header block of a call: literals alone, so that it is the same for every call."""
    # The static table has POST as 3, and the schemes as 6 and 7.
    found = b"\x83" + (b"\x86" if scheme == "http" else b"\x87")
    pairs = ((":path", path), (":authority", "localhost"), ("te", "trailers"), ("content-type", "application/grpc"))
    # 0: a literal that no table keeps, with a new name.
    return found + b"".join(b"\0" + _literal(name.encode()) + _literal(value.encode()) for name, value in (*pairs, *metadata))


def _literal(text: bytes) -> bytes:
    return _length(len(text)) + text


def _length(size: int) -> bytes:
    if size < 0x7F:
        return bytes((size,))
    made, rest = bytearray((0x7F,)), size - 0x7F
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def message_bytes(message: bytes) -> bytes:
    """A message as gRPC has it in its stream: not compressed, with its length."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def frames_in(data: bytes) -> tuple[list[HttpFrame], bytes]:
    """The whole frames, and the bytes behind them."""
    view, at, found = memoryview(data), 0, []
    while len(data) - at >= _HEAD_BYTES:
        size = int.from_bytes(view[at : at + 3], "big")
        if len(data) - at < _HEAD_BYTES + size:
            break
        stream = int.from_bytes(view[at + 5 : at + 9], "big") & MOST_WINDOW
        found.append(HttpFrame(data[at + 3], data[at + 4], stream, view[at + _HEAD_BYTES : at + _HEAD_BYTES + size]))
        at += _HEAD_BYTES + size
    return found, data[at:]


def settings_in(one: HttpFrame) -> dict[int, int]:
    return dict(struct.unpack_from(">HI", one.data, at) for at in range(0, len(one.data), 6))
