"""Frames between a supervisor and its child: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from threading import Lock

from msgspec import msgpack

from penstock.errors import InternalError
from penstock.workers.ipc.frames import FromChild, ToChild

_LENGTH = struct.Struct("<I")
# A batch is at most a few MiB; a larger length means that the stream is out of step or that the child wrote nonsense.
FRAME_LIMIT_BYTES = 1 << 30
_READ_BYTES = 1 << 18
_encoder = msgpack.Encoder()
_to_child = msgpack.Decoder(ToChild)
_from_child = msgpack.Decoder(FromChild)


def encode(frame: ToChild | FromChild) -> bytearray:
    """Raises `MemoryError` if it does not fit; msgspec would end the process if it grew its own bytes."""
    data = bytearray(_LENGTH.size)
    _encoder.encode_into(frame, data, _LENGTH.size)
    _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return data


class ChildGone(Exception):
    """The other end of the wire closed."""


class SupervisorWire:
    """The supervisor's end: never blocks, so that a stopped child cannot stop its supervisor.

    `mask` takes secrets out of each frame that arrives.
    """

    def __init__(self, sock: socket.socket, *, mask: Callable[[FromChild], FromChild] | None = None) -> None:
        self._sock = sock
        self._mask = mask
        self._inbox, self._unsent = bytearray(), bytearray()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait to be sent; call `flush` when the socket is writable again."""
        return bool(self._unsent)

    def send(self, frame: ToChild) -> None:
        data = encode(frame)
        if self._unsent:
            self._unsent += data
            return
        sent = self._push(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def flush(self) -> None:
        if self._unsent:
            del self._unsent[: self._push(self._unsent)]

    def _push(self, data: bytearray) -> int:
        try:
            return self._sock.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            # The child has closed its end. `receive` reports that, after the frames that have already arrived.
            return len(data)

    def receive(self) -> list[FromChild]:
        """Every complete frame that has arrived. Raises `ChildGone` at the end of the stream, after the last frame."""
        ended = self._fill()
        frames = self._frames()
        if ended and not frames:
            raise ChildGone
        return frames if self._mask is None else [self._mask(frame) for frame in frames]

    def _fill(self) -> bool:
        """Read all bytes that have arrived. True at the end of the stream."""
        while True:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                return True
            self._inbox += data
            if len(data) < _READ_BYTES:
                return not data

    def _frames(self) -> list[FromChild]:
        frames, start, inbox = list[FromChild](), 0, self._inbox
        while len(inbox) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(inbox, start)
            _check(length)
            end = start + _LENGTH.size + length
            if len(inbox) < end:
                break
            with memoryview(inbox) as view:
                frames.append(_from_child.decode(view[start + _LENGTH.size : end]))
            start = end
        del inbox[:start]
        return frames

    def close(self) -> None:
        self._sock.close()


class ChildWire:
    """The child's end: blocking. One thread reads; any may write."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb", buffering=_READ_BYTES)
        self._writing = Lock()

    def read(self) -> ToChild | None:
        """The next frame, or None when the supervisor is gone."""
        head = self._reader.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        _check(length)
        body = self._reader.read(length)
        return _to_child.decode(body) if len(body) == length else None

    def write(self, frame: FromChild) -> None:
        data = encode(frame)
        with self._writing:
            self._sock.sendall(data)


def _check(length: int) -> None:
    if length > FRAME_LIMIT_BYTES:
        raise InternalError(f"a frame of {length} bytes between supervisor and child exceeds the limit of {FRAME_LIMIT_BYTES}")
