"""One keep-alive HTTP/1.1 connection with at most one request under way, and the reader of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

from penstock.errors import BadRequest

_UNTIL_CLOSE = -1  # the answer has no length: it ends with the connection
_KEPT_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `unix` is a socket path and then wins over host and port."""

    host: str
    port: int
    path: str
    unix: str = ""


def parse_target(url: str, unix: str = "") -> Target:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise BadRequest(f"{url!r} cannot be loaded: only http://host[:port]/path is supported")
    path = parts.path or "/"
    return Target(parts.hostname, parts.port or 80, f"{path}?{parts.query}" if parts.query else path, unix)


def request_bytes(target: Target, *, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    """A whole request, ready to be written as often as needed."""
    lines = {"Host": f"{target.host}:{target.port}", **(headers or {})}
    if body or method not in ("GET", "DELETE"):
        lines["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target.path} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body


class UnreadableAnswer(Exception):
    """The server sent something this reader does not take; the connection is dropped and counted as lost."""


class AnswerReader:
    """Reads status line, length and close from one answer at a time; bodies are counted, not kept (but for the first bytes)."""

    __slots__ = ("_head", "_missing", "body", "closes", "status")

    def __init__(self) -> None:
        self._head = b""
        self._missing = 0
        self.status = 0
        self.closes = False
        self.body = b""

    def feed(self, data: bytes) -> bool:
        """True when `data` completes the answer; then `status`, `closes` and `body` (its first piece) hold."""
        if self._missing == 0:
            return self._feed_head(data)
        if self._missing == _UNTIL_CLOSE:
            return False
        return self._count_body(len(data))

    def ends_with_connection(self) -> bool:
        return self._missing == _UNTIL_CLOSE

    def _feed_head(self, data: bytes) -> bool:
        if self._head:
            data = self._head + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            return False
        self._head = b""
        self._missing = self._read_head(data[: end + 2].lower())
        self.body = data[end + 4 : end + 4 + _KEPT_BYTES]
        if self._missing == _UNTIL_CLOSE:
            return False
        return self._count_body(len(data) - end - 4)

    def _read_head(self, head: bytes) -> int:
        """The length of the body to come."""
        if not head.startswith(b"http/1."):
            raise UnreadableAnswer(f"not HTTP/1.x: {head[:40]!r}")
        self.status = int(head[9:12])
        self.closes = b"\r\nconnection: close" in head or head.startswith(b"http/1.0")
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            return int(head[at + 17 : head.find(b"\r\n", at + 17)])
        return self._length_unsaid(head)

    def _length_unsaid(self, head: bytes) -> int:
        if self.status in (204, 304):
            return 0
        if b"\r\ntransfer-encoding:" in head:
            raise UnreadableAnswer("chunked answers are not supported: load a route that sends Content-Length")
        return _UNTIL_CLOSE

    def _count_body(self, length: int) -> bool:
        if length > self._missing:
            raise UnreadableAnswer(f"{length - self._missing} bytes more than the answer's Content-Length")
        self._missing -= length
        return self._missing == 0


class Driver(Protocol):
    """Who decides what a connection does next."""

    def on_answer(self, connection: Connection) -> None: ...

    def on_lost(self, connection: Connection) -> None:
        """The connection is gone; `connection.busy` says whether an answer was owed."""
        ...


class Connection(asyncio.Protocol):
    """`sent_at` is when the request under way left, or was meant to leave, by the caller's clock."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._transport: asyncio.Transport | None = None
        self.reader = AnswerReader()
        self.busy = False
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, sent_at: float) -> None:
        assert self._transport is not None
        self.busy, self.sent_at = True, sent_at
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            complete = self.reader.feed(data)
        except (UnreadableAnswer, ValueError):
            self.close()
            return
        if complete:
            self._answered()

    def _answered(self) -> None:
        self.busy = False
        if self.reader.closes:
            self.close()
        self._driver.on_answer(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.busy and exc is None and self.reader.ends_with_connection():
            self.reader.closes = True
            self._answered()
        self._driver.on_lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(target: Target, driver: Driver) -> Connection:
    loop = asyncio.get_running_loop()
    if target.unix:
        return (await loop.create_unix_connection(lambda: Connection(driver), target.unix))[1]
    return (await loop.create_connection(lambda: Connection(driver), target.host, target.port))[1]
