"""A server that answers every request at once with the same few bytes, to measure the maximum rate of a load generator.

The server prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import cast

import uvloop

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class NullProtocol(asyncio.Protocol):
    """Reads one request at a time. `when` is called with a function that sends the answer; by default it calls it at once."""

    def __init__(self, when: Callable[[Callable[[], None]], None] = lambda answer: answer()) -> None:
        self._when = when
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
        else:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            self._missing = _length(self._head[: end + 2].lower()) - (len(self._head) - end - 4)
            self._head = b""
        if self._missing <= 0:
            self._missing = 0
            self._when(self._answer)

    def _answer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_ANSWER)


def _length(head: bytes) -> int:
    at = head.find(b"\r\ncontent-length:")
    return int(head[at + 17 : head.find(b"\r\n", at + 17)]) if at >= 0 else 0


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(NullProtocol, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    # The parent process closes the pipe, or dies: both end the server.
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    await over.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve())
