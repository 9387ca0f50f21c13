"""The client's connection, with deadlines for slow clients, and the process's lifetime. Both limit the time for answers."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock.gateway.asgi.door import Door

CONNECTION = "penstock.connection"
# Waiting requests are answered this long before the server would cut them off.
ANSWER_MARGIN_S = 2.0
HEAD_S = 10.0
BODY_S = 30.0
BODY_BYTES_PER_S = 256 * 1024
LINGER_S = 1.0
NEWCOMER_S = 1.0
# The application refuses heads above 16 KiB with a full response; this only bounds the memory that one connection can take.
MAX_HEAD_BYTES = 64 * 1024


@dataclass(slots=True)
class Lifetime:
    """The phase of this process between start and end. `started`: the store was reached once. Moments are monotonic seconds."""

    started: bool = False
    cut_at: float = math.inf

    def drain(self, grace_s: float) -> None:
        """Make the process not ready: long polls are answered at once, predictions shortly before `grace_s` is over."""
        self.cut_at = min(self.cut_at, time.monotonic() + grace_s - ANSWER_MARGIN_S)

    def is_draining(self) -> bool:
        return self.cut_at < math.inf

    def is_last_call(self) -> bool:
        return time.monotonic() >= self.cut_at


class ClientConnection:
    """The connection of a waiting request: `lost` once the client has hung up, and `on_lost` is called at that moment.

    `phrase`: the reason phrase of the next response; None: the standard one. `key_id`: the key of the last request.
    """

    def __init__(self) -> None:
        self.lost = False
        self.key_id = ""
        self.on_lost: Callable[[], None] | None = None
        self.phrase: bytes | None = None

    def mark_lost(self) -> None:
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()


def connection_of(scope: Mapping[str, Any]) -> ClientConnection:
    """The connection behind a request. Without one, as in tests that call the application, it is one that is never lost."""
    connection: ClientConnection | None = scope.get(CONNECTION)
    return connection if connection is not None else ClientConnection()


class SingleWriteTransport:
    """Writes the head of one response together with its body: separate writes are two system calls and wake the client twice.

    Replaces the transport. A head waits only if a body of known length follows.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head = b""
        self._begun = False

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.writelines([self._head, data])
            self._head = b""
            return
        data = self._worded(data)
        if self._body_follows():
            self._head, self._begun = data, True
        else:
            self._transport.write(data)

    def _worded(self, data: bytes) -> bytes:
        """The head of a response with the connection's reason phrase, which ASGI cannot set."""
        connection = connection_of(self._cycle.scope)
        if connection.phrase is None or not self._cycle.response_started:
            return data
        phrase, connection.phrase = connection.phrase, None
        line, end, rest = data.partition(b"\r\n")
        return b" ".join([*line.split(b" ", 2)[:2], phrase]) + end + rest

    def _body_follows(self) -> bool:
        # What is written before the response starts is "100 Continue"; a stream has no expected length.
        cycle = self._cycle
        if self._begun or not cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        return cycle.expected_content_length > 0

    def close(self) -> None:
        """If the response is aborted after its head, send the head, so that the client sees a truncated response."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        if self._cycle.response_complete and self._cycle.more_body:
            close_slowly(self._transport, asyncio.get_running_loop())
        else:
            self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def close_slowly(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close after a response that was sent before the end of the request.

    Closing with unread bytes resets the connection, and the client may lose the response. So read and drop for a moment.
    """
    transport.write_eof()
    loop.call_later(LINGER_S, transport.close)


def write_in_one(cycle: RequestResponseCycle | Any) -> None:
    """Write the response of `cycle`, which has not begun, with one system call."""
    cycle.transport = SingleWriteTransport(cycle.transport, cycle)


def keep_open(cycle: RequestResponseCycle | Any, lifetime: Lifetime) -> None:
    """Keep the connection of an HTTP/1.0 client that asks for it, as `ab -k` does.

    Such a client finds the end of a response only by its length, so a response without one still ends the connection.
    """
    send = cycle.send

    async def send_and_keep(message: Any) -> None:
        if message["type"] == "http.response.start" and _has_end(message) and not lifetime.is_draining():
            cycle.keep_alive = True
            message = {**message, "headers": [*message["headers"], (b"connection", b"keep-alive")]}
        await send(message)

    cycle.send = send_and_keep  # type: ignore[method-assign]


def _has_end(message: Mapping[str, Any]) -> bool:
    names = {name for name, _ in message["headers"]}
    return b"connection" not in names and (b"content-length" in names or message["status"] in (204, 304))


class GuardedProtocol(HttpToolsProtocol):
    """Adds deadlines for slow clients and a limit on heads, which the HTTP server itself does not have.

    `due_at` is when the part of a request that is under way must have arrived, by the loop's clock. A head may take `head_s`,
    a body `body_s` plus time by its size; `body_s` is also how long a client may leave a response unread.
    """

    head_s = HEAD_S
    body_s = BODY_S
    due_at = math.inf
    door = Door()
    lifetime = Lifetime()
    opened_at = 0.0
    _address = ""
    _unsent_bytes = 0
    _unsent_since = 0.0
    _refused = False
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client_connection = ClientConnection()
        self.opened_at = self.loop.time()
        self._address = self.client[0] if self.client else ""
        refusal = self.door.enter(self._address)
        if refusal:
            self.refuse(503, "gateway_busy", refusal)
            return
        self.due_at = self.loop.time() + self.head_s

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.door.leave(self._address)
        self.client_connection.mark_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.refuse(431, "headers_too_large", f"The head of the request exceeds {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self.client_connection  # type: ignore[literal-required]
        self._in_head, self._head_bytes = True, 0
        self.due_at = self.loop.time() + self.head_s

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.due_at = self.loop.time() + self.body_s
        super().on_headers_complete()
        write_in_one(self.cycle)
        if self.scope["http_version"] == "1.0" and self.parser.should_keep_alive():
            keep_open(self.cycle, self.lifetime)
        if self.lifetime.is_draining():
            self.announce_end()

    def on_body(self, body: bytes) -> None:
        self.due_at += len(body) / BODY_BYTES_PER_S
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.due_at = math.inf
        super().on_message_complete()

    def announce_end(self) -> None:
        """Add `Connection: close` to the response under way, so that the client sends its next request elsewhere."""
        cycle: Any = self.cycle  # None before the first head is complete
        if cycle is not None:
            cycle.keep_alive = False

    def break_off(self) -> None:
        """Close the connection in the middle of the response, if one is under way."""
        cycle: Any = self.cycle  # None before the first head is complete
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()

    def is_newcomer(self, now: float) -> bool:
        """Whether the client has just connected and its first request is not complete."""
        cycle: Any = self.cycle  # None before the first head is complete
        return cycle is None and now - self.opened_at < NEWCOMER_S

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "bad_request", "This is not a valid HTTP request")

    def enforce(self, now: float) -> None:
        """Disconnect a client that is too slow. The server calls this about once a second."""
        if now > self.due_at and not self._refused:
            self._refuse_slow()
        elif self._is_unread(now):
            # A refusal cannot be sent: the client has not read the previous response.
            self.transport.abort()

    def _refuse_slow(self) -> None:
        cycle: Any = self.cycle  # None before the first head is complete
        if self._in_head or cycle is not None:
            self.refuse(408, "too_slow", "The request did not arrive in time")
            return
        # Idle keep-alive connections are closed without a response: a client would take one for that of its next request.
        self.due_at = math.inf
        self.transport.close()

    def _is_unread(self, now: float) -> bool:
        """Whether the client has read nothing of the waiting response for `body_s`."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent_bytes or not unsent:
            self._unsent_bytes, self._unsent_since = unsent, now
        return now - self._unsent_since > self.body_s

    def refuse(self, status: int, code: str, detail: str) -> None:
        """Answer and close. Only close if the request under way already has a response (the rest of a refused upload)."""
        self.due_at = math.inf
        cycle: Any = self.cycle  # None before the first head is complete
        if not self._in_head and cycle is not None and cycle.response_started:
            self.transport.close()
            return
        self._refused = True
        self.transport.write(_raw_problem(status, code, detail))
        close_slowly(self.transport, self.loop)


def guarded(*, head_s: float, body_s: float, door: Door, lifetime: Lifetime) -> type[GuardedProtocol]:
    """A protocol class with these limits: the server instantiates it per connection and passes no arguments of ours."""
    return type("Guarded", (GuardedProtocol,), {"head_s": head_s, "body_s": body_s, "door": door, "lifetime": lifetime})


_PHRASES = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


def _raw_problem(status: int, code: str, detail: str) -> bytes:
    phrase, request_id = _PHRASES[status], uuid.uuid4().hex
    problem = {"type": f"/problems/{code}", "title": phrase, "status": status, "code": code, "detail": detail}
    body = orjson.dumps({**problem, "request_id": request_id})
    retry = "retry-after: 2\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/problem+json\r\nx-request-id: {request_id}\r\n"
        f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
