"""The head of an answer and its body in one write: apart they are two system calls, and the client is woken twice."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class SingleWriteTransport:
    """In place of the transport, as one answer uses it. A head is held back only where a body of a known length must follow."""

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head = b""
        self._begun = False

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.writelines([self._head, data])
            self._head = b""
        elif self._body_follows():
            self._head, self._begun = data, True
        else:
            self._transport.write(data)

    def _body_follows(self) -> bool:
        # Before the answer it is "100 Continue"; streams have no length to expect.
        cycle = self._cycle
        if self._begun or not cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        return cycle.expected_content_length > 0

    def close(self) -> None:
        """Broken off behind its head, an answer shows as much."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def join(cycle: RequestResponseCycle | Any) -> None:
    """Have the answer of `cycle`, which has not begun, written as one."""
    cycle.transport = SingleWriteTransport(cycle.transport, cycle)
