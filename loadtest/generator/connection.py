"""One keep-alive HTTP/1.1 connection with at most one request under way."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

from penstock.errors import BadRequest
from penstock.loadtest.generator.answers import AnswerReader, UnreadableAnswer

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where requests go. `unix`: a socket's path, instead of host and port. With `tls`, certificates are verified."""

    host: str
    port: int
    path: str
    unix: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class RequestBody:
    data: bytes
    content_type: str


def parse_target(url: str, unix: str = "") -> HttpTarget:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise BadRequest(f"{url!r} cannot be loaded: only http(s)://host[:port]/path is supported")
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return HttpTarget(parts.hostname, parts.port or _PORTS[parts.scheme], path, unix, tls=parts.scheme == "https")


def request_bytes(
    target: HttpTarget, *, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    """A complete request."""
    lines = {"Host": f"{target.host}:{target.port}", **(headers or {})}
    if body or method not in ("GET", "DELETE"):
        lines["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target.path} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body


class ConnectionOwner(Protocol):
    """Decides what a connection does next."""

    def on_answer(self, connection: Connection) -> None: ...

    def on_lost(self, connection: Connection) -> None:
        """The connection has broken; `connection.busy` says whether a call was under way."""
        ...


class Connection(asyncio.Protocol):
    """`sent_at`: when the current request left, or was meant to leave, by the caller's clock."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
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
        if not self.busy:
            # Without a request under way this is not an answer: some servers write an error before they close an idle
            # connection.
            self.close()
            return
        try:
            complete = self.reader.feed(data)
        except (UnreadableAnswer, ValueError):
            self.close()
            return
        if complete:
            self._on_answer()

    def _on_answer(self) -> None:
        self.busy = False
        if self.reader.closes:
            self.close()
        self._owner.on_answer(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.busy and exc is None and self.reader.ends_with_connection():
            self.reader.closes = True
            self._on_answer()
        self._owner.on_lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(target: HttpTarget, owner: ConnectionOwner) -> Connection:
    loop = asyncio.get_running_loop()
    if target.unix:
        return (await loop.create_unix_connection(lambda: Connection(owner), target.unix))[1]
    secured = ssl.create_default_context() if target.tls else None
    return (await loop.create_connection(lambda: Connection(owner), target.host, target.port, ssl=secured))[1]
